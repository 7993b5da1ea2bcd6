"""Settings of the whole process: of torch, of Python, and of the environment that both read when they start."""

from __future__ import annotations

import functools
import gc
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import malloc
from .interfaces import CannotSwitch, Editor, Edits, Injection, Switch, no_gpu
from .setting import (
    Argument,
    Loop,
    Run,
    Safety,
    Setting,
    Words,
    as_in_own_loop,
    flag,
    not_possible,
    only,
    said_itself,
    whole,
)

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import RankManifest

VARIABLES = frozenset(
    {
        "OMP_NUM_THREADS",
        "CUDA_LAUNCH_BLOCKING",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "PYTORCH_NO_HIP_MEMORY_CACHING",
    }
)
"""Environment variables that torch, or what it stands on, reads when it starts."""

ALLOW_TF32, FORBID_TF32 = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"), ("NVIDIA_TF32_OVERRIDE", "")


@dataclass(frozen=True)
class Environment(Setting):
    """Environment variables, by names and values; an empty value takes one out. Raises ValueError for unknown ones."""

    value: tuple[tuple[str, str], ...] = ()

    form = "env:"
    takes = {"": lambda value: bool(value) and VARIABLES.issuperset(name for name, _ in value)}  # type: ignore[attr-defined]

    framework = as_in_own_loop

    @property
    def name(self) -> str:
        return self.form + " ".join("=".join(pair) for pair in self.value)

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        return self.value

    @property
    def changes(self) -> Safety:
        threads = any(name == "OMP_NUM_THREADS" for name, _ in self.value)
        return Safety.ROUNDING if threads else Safety.SAME_NUMBERS

    @property
    def link(self) -> str:
        if self.value[0][0].startswith("MALLOC_"):
            return "https://sourceware.org/glibc/manual/latest/html_node/Malloc-Tunable-Parameters.html"
        return "https://docs.pytorch.org/docs/stable/notes/cuda.html"

    def words(self) -> Words:
        gone = [name for name, value in self.value if not value]
        told = " ".join("=".join(pair) for pair in self.value if pair[1])
        return Words(
            f"Unset {' and '.join(gone)}." if gone else f"Set {told}.",
            f"{gone[0]}=1 python train.py" if gone else "python train.py",
            f"{told} python train.py".lstrip(),
        )

    def in_force(self, run: Run) -> bool:
        """One that is only taken out was seen by the rule: what is not among the variables may not be recorded."""
        as_asked = all(run.environment.get(name, "") == value for name, value in self.value)
        return as_asked and any(value for _, value in self.value)

    def inject(self, injection: Injection) -> None:
        """The parent of the process sets them: only what is to be out has to go."""
        take_out(injection, self.value)

    @property
    def why_no_switch(self) -> str:
        known = all(name in malloc.OPTIONS and value for name, value in self.value)
        return "" if known else "the variable is read when the process starts"

    @property
    def varies_by_process(self) -> bool:
        """glibc gives memory back or keeps it by where blocks happen to lie."""
        return not self.why_no_switch

    def switch(self, injection: Injection) -> Switch:
        return malloc.switch(self.value)

    def took_effect(self, rank: RankManifest) -> str:
        threads = dict(self.value).get("OMP_NUM_THREADS", "")  # Empty: it is taken out, and torch counts cores.
        if rank.flags.threads is not None and threads not in ("", str(rank.flags.threads)):
            return f"torch computes with {rank.flags.threads} threads, which the script sets itself"
        gpu = [name for name, _ in self.value if "OMP" not in name and "MALLOC_" not in name]
        return f"PyTorch used no GPU, to which {gpu[0]} applies" if gpu and not rank.allocator else ""

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return set_variables(editor, self.value)


def take_out(injection: Injection, variables: tuple[tuple[str, str], ...]) -> None:
    """Inject environment variables that the parent of the process has set."""
    for name, value in variables:
        if not value:
            os.environ.pop(name, None)
    said = [f"{name}={value}" if value else f"no {name}" for name, value in variables]
    injection.note_everywhere(f"{' '.join(said)} in the environment")

    def changed() -> str:
        other = (name for name, value in variables if os.environ.get(name, "") != value)
        return next((f"the script sets {name} itself" for name in other), "")

    injection.check = changed


def set_variables(editor: Editor, variables: tuple[tuple[str, str], ...]) -> Edits:
    """Of all of them."""
    edits = [edit for name, value in variables for edit in editor.variable(name, value)]
    if not edits:
        editor.refuse(f"nothing in your files sets {' or '.join(name for name, _ in variables)}")
    return edits


@dataclass(frozen=True)
class Tf32(Setting):
    """TF32 in matmuls in fp32. `value`: whether a variable that forbids it has to go, too."""

    value: Any = False

    form = "env:"
    takes = {"": flag}
    changes = Safety.PRECISION
    link = "https://docs.pytorch.org/docs/stable/notes/cuda.html"

    @property
    def name(self) -> str:
        return self.form + " ".join("=".join(pair) for pair in self.variables)

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        return (ALLOW_TF32, FORBID_TF32) if self.value else (ALLOW_TF32,)

    def words(self) -> Words:
        if self.value:
            return Words("Unset NVIDIA_TF32_OVERRIDE: the value 0 forbids TF32.", "NVIDIA_TF32_OVERRIDE=0")
        return Words("Allow TF32.", after='torch.set_float32_matmul_precision("high")')

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        if self.value:
            return None
        if loop is Loop.TRANSFORMERS:
            return Argument("transformers.TrainingArguments", "tf32", True)
        return "before trainer.fit(model)" if loop is Loop.LIGHTNING else None

    def in_force(self, run: Run) -> bool:
        return run.rank.flags.cuda_matmul_allow_tf32 is True and run.environment.get(FORBID_TF32[0]) != "0"

    def inject(self, injection: Injection) -> None:
        take_out(injection, self.variables)

    @property
    def why_no_switch(self) -> str:
        return f"{FORBID_TF32[0]} is read when the process starts" if self.value else ""

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        if why := no_gpu(torch):
            raise CannotSwitch(f"{why}, to which TF32 applies")
        before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        if torch.backends.cuda.matmul.allow_tf32:
            raise CannotSwitch("the script allows TF32 already")

        def turn(on: bool) -> None:
            torch.set_float32_matmul_precision("high" if on else before)
            torch.backends.cudnn.allow_tf32 = on or cudnn

        def why_none() -> str:
            return "" if torch.backends.cuda.matmul.allow_tf32 else "the script forbids TF32 itself"

        return Switch(turn, why_none, f"torch.get_float32_matmul_precision() {before} -> high")

    def took_effect(self, rank: RankManifest) -> str:
        if rank.flags.cuda_matmul_allow_tf32 is False:
            return "torch still does not allow TF32"
        return "" if rank.allocator else f"PyTorch used no GPU, to which {ALLOW_TF32[0]} applies"

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        edits = editor.call_once("set_float32_matmul_precision", "precision", "high")
        return edits + editor.variable(*FORBID_TF32) if self.value else edits


@dataclass(frozen=True)
class CudnnBenchmark(Setting):
    """cuDNN or MIOpen measures its kernels, once for each size."""

    argument: str = "benchmark"
    value: Any = True

    form = "patch:torch.backends.cudnn"
    takes = {"benchmark": only(True)}
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark"

    framework = as_in_own_loop

    def words(self) -> Words:
        after = "torch.backends.cudnn.benchmark = True  # once, before training; on AMD as well"
        return Words("Let cuDNN or MIOpen benchmark its kernels.", after=after)

    def in_force(self, run: Run) -> bool:
        return run.rank.flags.cudnn_benchmark is self.value

    def inject(self, injection: Injection) -> None:
        def act(module: Any) -> None:
            cudnn = module.backends.cudnn
            cudnn.benchmark = self.value
            injection.note_everywhere("torch.backends.cudnn.benchmark is on from the start")
            injection.check = lambda: no_gpu(module) or ("" if cudnn.is_available() else "PyTorch has no cuDNN here")

        injection.when_imported("torch", act)

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        if why := no_gpu(torch):
            raise CannotSwitch(why)
        cudnn = torch.backends.cudnn
        if cudnn.benchmark:
            raise CannotSwitch("the script has benchmark=True already")

        def turn(on: bool) -> None:
            cudnn.benchmark = on

        return Switch(turn, lambda: "" if cudnn.benchmark else "the script switches cudnn.benchmark off", self.name)

    def took_effect(self, rank: RankManifest) -> str:
        return "the script switches cudnn.benchmark off" if rank.flags.cudnn_benchmark is False else ""

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.assigned("torch.backends.cudnn.benchmark", self.value)


@dataclass(frozen=True)
class Threads(Setting):
    """How many threads compute CPU ops. What torch sets in its workers stays."""

    argument: str = "threads"

    form = "patch:torch.set_num_threads"
    takes = {"threads": whole(1)}
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/generated/torch.set_num_threads.html"

    framework = as_in_own_loop

    def words(self) -> Words:
        return Words("Use as many threads as there are cores.", after=f"torch.set_num_threads({self.value})")

    def in_force(self, run: Run) -> bool:
        return bool(run.rank.flags.threads == self.value)

    def inject(self, injection: Injection) -> None:
        def act(module: Any) -> None:
            original, wanted, before = module.set_num_threads, self.value, module.get_num_threads()

            @functools.wraps(original)
            def set_num_threads(threads: int) -> None:
                own = injection.caller() is not None and module.utils.data.get_worker_info() is None
                if own and threads != wanted:
                    injection.note("torch.set_num_threads", f"{threads} -> {wanted}")
                original(wanted if own else threads)

            module.set_num_threads = set_num_threads
            if before != wanted:
                original(wanted)
                injection.note_everywhere(f"torch computes with {wanted} threads from the start, not with {before}")
            else:
                injection.refuse(f"torch computes with {wanted} threads already")

        injection.when_imported("torch", act)

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        before = torch.get_num_threads()
        if before == self.value:
            raise CannotSwitch(f"torch computes with {before} threads already")

        def turn(on: bool) -> None:
            torch.set_num_threads(self.value if on else before)

        def why_none() -> str:
            now = torch.get_num_threads()
            return "" if now == self.value else f"torch computes with {now} threads, which the script sets itself"

        return Switch(turn, why_none, f"torch.get_num_threads() {before} -> {self.value}")

    def took_effect(self, rank: RankManifest) -> str:
        return (
            ""
            if rank.flags.threads in (None, self.value)
            else f"torch computes with {rank.flags.threads} threads, which the script sets itself"
        )

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.call_once("set_num_threads", self.argument, self.value)


@dataclass(frozen=True)
class AnomalyMode(Setting):
    """Autograd's anomaly detection."""

    argument: str = "mode"
    value: Any = False

    form = "patch:set_detect_anomaly"
    takes = {"mode": only(False)}
    link = "https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection"

    def words(self) -> Words:
        calls = (f"torch.autograd.set_detect_anomaly({mode})" for mode in (True, False))
        return Words("Disable anomaly detection.", *calls)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        return Argument("lightning.Trainer", "detect_anomaly", False) if loop is Loop.LIGHTNING else None

    def in_force(self, run: Run) -> bool:
        return run.rank.flags.anomaly_mode is self.value

    def inject(self, injection: Injection) -> None:
        injection.change_calls("torch.autograd.anomaly_mode", "set_detect_anomaly", "__init__")

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        if not torch.is_anomaly_enabled():
            raise CannotSwitch("anomaly detection is off between steps")
        looks_for_nan = torch.is_anomaly_check_nan_enabled()

        def turn(on: bool) -> None:
            torch.autograd.set_detect_anomaly(not on, looks_for_nan)

        def why_none() -> str:
            return "the script switches anomaly detection on itself" if torch.is_anomaly_enabled() else ""

        return Switch(turn, why_none, "torch.is_anomaly_enabled() True -> False")

    def took_effect(self, rank: RankManifest) -> str:
        return "anomaly detection is still on" if rank.flags.anomaly_mode else ""

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.giving_calls("set_detect_anomaly", self.argument, self.value)


@dataclass(frozen=True)
class Determinism(Setting):
    """Whether algorithms have to add in the same order in every run."""

    argument: str = "mode"
    value: Any = False

    form = "patch:torch.use_deterministic_algorithms"
    takes = {"mode": only(False)}
    changes = Safety.ROUNDING
    link = "https://docs.pytorch.org/docs/stable/notes/randomness.html"

    def words(self) -> Words:
        calls = (f"torch.use_deterministic_algorithms({mode})" for mode in (True, False))
        return Words("Allow nondeterministic algorithms.", *calls)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        return {
            Loop.TRANSFORMERS: Argument("transformers.TrainingArguments", "full_determinism", False),
            Loop.LIGHTNING: Argument("lightning.Trainer", "deterministic", False),
        }.get(loop)

    def in_force(self, run: Run) -> bool:
        return run.rank.flags.deterministic_algorithms is self.value

    def inject(self, injection: Injection) -> None:
        shown = "torch.use_deterministic_algorithms"
        injection.change_calls("torch", "", "use_deterministic_algorithms", shown)

    def switch(self, injection: Injection) -> Switch:
        torch = sys.modules["torch"]
        if not torch.are_deterministic_algorithms_enabled():
            raise CannotSwitch("the script already allows nondeterministic algorithms")
        warns = torch.is_deterministic_algorithms_warn_only_enabled()

        def turn(on: bool) -> None:
            torch.use_deterministic_algorithms(not on, warn_only=warns)

        def why_none() -> str:
            on = torch.are_deterministic_algorithms_enabled()
            return "the script switches deterministic algorithms on itself" if on else ""

        return Switch(turn, why_none, "torch.are_deterministic_algorithms_enabled() True -> False")

    def took_effect(self, rank: RankManifest) -> str:
        return "deterministic algorithms are still on" if rank.flags.deterministic_algorithms else ""

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.giving_calls("use_deterministic_algorithms", self.argument, self.value)


@dataclass(frozen=True)
class CollectByHand(Setting):
    """Garbage is collected in one step of so many; what is there after the first step is left out."""

    argument: str = "every"
    value: Any = 500

    form = "patch:gc.freeze"
    takes = {"every": whole(1)}
    link = "https://docs.python.org/3/library/gc.html"

    is_of_collections = True
    in_force = not_possible("collections are in the recording")
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        after = "gc.collect(); gc.freeze(); gc.disable()  # before the loop\n"
        after += f"if step % {self.value} == 0:\n    gc.collect(1)"
        return Words("Collect garbage manually, rarely, and on all ranks in the same step.", after=after)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        where = {
            Loop.TRANSFORMERS: "in on_step_end() of a TrainerCallback, by state.global_step",
            Loop.LIGHTNING: "in on_train_batch_end() of a Callback, by batch_idx",
        }
        return where.get(loop)

    def inject(self, injection: Injection) -> None:
        """After the first step of an optimizer."""
        steps = 0

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            nonlocal steps
            if steps == 0:
                gc.collect()
                gc.freeze()
                gc.disable()
                every = f"gc.collect(1) every {self.value} steps"
                injection.note_everywhere(f"gc.freeze() after the first step, then {every}")
                injection.check = lambda: "the script switches automatic collection on" if gc.isenabled() else ""
            elif steps % self.value == 0:
                gc.collect(1)
            steps += 1

        def act(module: Any) -> None:
            module.register_optimizer_step_post_hook(stepped)

        injection.refuse("no optimizer of torch.optim stepped")
        injection.when_imported("torch.optim.optimizer", act)

    def switch(self, injection: Injection) -> Switch:
        """Blocks are too short for the seldom collections by hand."""
        if not gc.isenabled():
            raise CannotSwitch("the script has switched automatic collection off")

        def turn(on: bool) -> None:
            if on:
                gc.collect()
                gc.freeze()
                gc.disable()
            else:
                gc.unfreeze()
                gc.enable()

        def why_none() -> str:
            return "the script switches automatic collection on" if gc.isenabled() else ""

        return Switch(turn, why_none, "gc.freeze(), and no automatic collection", collects=True)
