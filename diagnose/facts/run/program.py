"""What kind of program was recorded: in which language its user writes it, whether it trains, what owns its loop."""

import re
from enum import Enum

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import BACKWARD
from diagnose.facts.core.spans import names_of
from diagnose.fixes.setting import Loop
from diagnose.trace import enums, frames, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.kinds import Activity, ApiKind, KernelKind


class Language(str, Enum):
    """In what its user writes the program."""

    PYTHON = "python"  # Also where nothing says otherwise.
    CPP = "c++"  # With libtorch.
    CUDA = "cuda"  # C++ or another compiled language, without PyTorch.


class Workload(str, Enum):
    """What the program does with its model."""

    TRAINING = "training"
    INFERENCE = "inference"
    UNKNOWN = "unknown"


class Program(Struct, frozen=True):
    """The program that was recorded."""

    language: Language
    workload: Workload
    loop: Loop = Loop.OWN  # What owns the training loop.

    @property
    def infers(self) -> bool:
        """Whether it is known to be inference."""
        return self.workload is Workload.INFERENCE


_NODES_WITHOUT_NUMBER = re.compile("(Mm|Addmm|T|View|CudnnConvolution|CudnnBatchNorm|NllLoss|LogSoftmax)Backward")
"""Of autograd's graph; since PyTorch 1.10 each has a number behind its name, if it is torch's own."""

OF_TRAINING = frozenset({"accumulation", "buckets", "gradient_zeroing", "optimizer_steps"})  # Facts of trainings only.


_OF_TORCH = re.compile(r"\bat::|\bc10::|^triton_")  # Kernels of PyTorch, and of its compiler.

_OF_PYTHON = (Activity.LOADER, Activity.OPTIMIZER_STEP, Activity.ZERO_GRAD, Activity.STEP, Activity.GARBAGE_COLLECTION)
"""Written by PyTorch's Python part only."""

_GRADIENTS = re.compile(r"backward|_bwd|dgrad|wgrad|adam|optimizer", re.IGNORECASE)  # Kernels that make or use these.

_MODEL = (KernelKind.GEMM, KernelKind.CONV, KernelKind.ATTENTION, KernelKind.RNN, KernelKind.TRITON_TEMPLATE)
_MODEL_OPS = re.compile(r"^aten::(addmm|mm|bmm|baddbmm|linear|matmul|_?convolution|scaled_dot_product_attention)\Z")


_SERVING = re.compile(
    r"paged_attention|decode_attention|reshape_and_cache|kv_?cache|\bDECODE\b|\b(vllm|sglang|tensorrt_llm)/"
    r"|transformers/generation/",
    re.IGNORECASE,
)
"""Kernels, ranges and frames of programs that generate text for requests."""


@fact
def program(facts: Facts) -> Program:
    """The language and the workload of what was recorded."""
    return Program(_language(facts), _workload(facts), loop_owner(facts))


def older_than(facts: Facts) -> tuple[int, int] | None:
    """A version (major, minor) that the program's PyTorch is older than, by names of nodes; None if none is known."""
    return (
        (1, 10) if any(map(_NODES_WITHOUT_NUMBER.fullmatch, _names(facts, SpanKind.OP, SpanKind.ANNOTATION))) else None
    )


def _names(facts: Facts, *of_kinds: SpanKind) -> list[str]:
    """The distinct names of spans of these kinds."""
    spans = facts.rank.spans
    chosen = spans["kind"].isin([kind.value for kind in of_kinds]).to_numpy()
    codes = spans["name"].cat.codes.to_numpy()[chosen]
    return [names_of(facts)[code] for code in np.unique(codes)]


def _language(facts: Facts) -> Language:
    """Python by any sign of it, and by default; CUDA if Nsight saw no PyTorch; C++ if another process ran PyTorch."""
    known = facts.rank.provenance
    threads = facts.rank.tracks.loc[facts.rank.tracks["device"] < 0, "name"]
    python = facts.rank.context is not None or bool(known.recorded & {"stacks", "samples"})
    python |= bool(known.python) or any(kinds.names_python(name) for name in threads)
    marks = _names(facts, SpanKind.ANNOTATION, SpanKind.LOADER, SpanKind.PYTHON)
    if python or any(kinds.activity(name) in _OF_PYTHON for name in marks):
        return Language.PYTHON
    torch = "ops" in known.recorded or any(_OF_TORCH.search(name) for name in _names(facts, SpanKind.KERNEL))
    if known.format == "nsight" and not torch:
        return Language.CUDA
    return Language.CPP if known.python is False and torch else Language.PYTHON


def _workload(facts: Facts) -> Workload:
    """Inference is what ran a model in whole steps, or for requests, and recorded nothing for gradients.

    What is not seen in a stretch of time may come later: a training may run a frozen model first.
    """
    known, ops = facts.rank.context, _names(facts, SpanKind.OP, SpanKind.ANNOTATION)
    trains = (Activity.OPTIMIZER_STEP, Activity.ZERO_GRAD)
    if known is not None and known.rank.optimizers:
        return Workload.TRAINING
    if any(name.startswith(BACKWARD) or kinds.activity(name) in trains for name in ops):
        return Workload.TRAINING
    kernels = _names(facts, SpanKind.KERNEL)
    if "ops" not in facts.rank.provenance.recorded or any(_GRADIENTS.search(name) for name in (*ops, *kernels)):
        return Workload.UNKNOWN
    if not facts.rank.steps and not any(map(_SERVING.search, (*ops, *kernels, *_names(facts, SpanKind.PYTHON)))):
        return Workload.UNKNOWN
    ran = any(kinds.kernel_kind(name) in _MODEL for name in kernels) or any(map(_MODEL_OPS.match, ops))
    recording = bool((facts.rank.ops["sequence"] >= 0).any())
    return Workload.UNKNOWN if not ran or recording or _hidden_graphs(facts) else Workload.INFERENCE


def _hidden_graphs(facts: Facts) -> bool:
    """Whether a CUDA graph ran whose kernels are not in the recording: it may have held any."""
    spans: pd.DataFrame = facts.rank.spans
    names = spans["name"].cat
    replays = [code for code, name in enumerate(names.categories) if kinds.api_kind(name) is ApiKind.GRAPH_LAUNCH]
    calls = np.flatnonzero(np.isin(names.codes.to_numpy(), replays))
    return not np.isin(calls, device_work(facts).launch).all()


@fact
def loop_owner(facts: Facts) -> Loop:
    """As the recorder says, else by the frames that were recorded; the user's script where none is a framework's."""
    context = facts.rank.context
    if context is not None and context.rank.loop is not None:
        return Loop(context.rank.loop)
    spans = facts.rank.spans
    names, is_python = spans["name"].cat, spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON)
    seen = {str(names.categories[code]) for code in set(names.codes.to_numpy()[is_python].tolist())}
    seen.update(map(str, facts.rank.lines["framework"].cat.categories))
    owners = {owner for name in seen if (owner := frames.loop_owner(name)) is not None}
    return Loop(frames.outermost_owner(owners) or Loop.OWN)
