"""Which fixes can be injected, by the forms of their names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from . import arguments, calls, gradients, loaders, models, process
from .fixes import Injection, Trial, split

VARIABLES = frozenset(
    {
        "OMP_NUM_THREADS",
        "CUDA_LAUNCH_BLOCKING",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "PYTORCH_NO_HIP_MEMORY_CACHING",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    }
)
"""Environment variables that torch, or what it stands on, reads when it starts."""


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _nothing(value: Any) -> bool:
    return value is None


def _times(value: Any) -> bool:
    return isinstance(value, str) and value[:-1].isdecimal() and value.endswith("x") and int(value[:-1]) > 1


DDP_FLAGS = (
    "batched_grad_copy",
    "broadcast_buffers",
    "find_unused_parameters",
    "forward_sync_buffers",
    "gradient_as_bucket_view",
    "static_graph",
)

Form = tuple[Callable[[Any], bool], Callable[[Injection], None]]
"""Which values it takes, and how to inject it."""

FORMS: dict[tuple[str, str, str], Form] = {
    ("patch", "DataLoader", "num_workers"): (_whole(0), arguments.loader),
    ("patch", "DataLoader", "prefetch_factor"): (_whole(1), arguments.loader),
    ("patch", "DataLoader", "pin_memory"): (_flag, arguments.loader),
    ("patch", "DataLoader", "persistent_workers"): (_flag, arguments.loader),
    ("patch", "DataLoader", "batch_size"): (_times, arguments.loader),
    ("patch", "torch.optim", "fused"): (_flag, arguments.optimizers),
    ("patch", "torch.optim", "foreach"): (_flag, arguments.optimizers),
    ("patch", "zero_grad", "set_to_none"): (_flag, arguments.zero_grad),
    ("patch", "Embedding", "max_norm"): (_nothing, arguments.embedding),
    ("patch", "fully_shard", "reshard_after_forward"): (_flag, arguments.shard),
    ("patch", "set_detect_anomaly", "mode"): (_flag, arguments.anomalies),
    ("patch", "torch.use_deterministic_algorithms", "mode"): (_flag, arguments.deterministic),
    ("patch", "torch.compile", "dynamic"): (_flag, arguments.compile_calls),
    ("patch", "torch.compile", "mode"): (_word, arguments.compile_calls),
    ("patch", "torch.set_num_threads", "threads"): (_whole(1), process.set_threads),
    ("patch", "torch.set_flush_denormal", "mode"): (_flag, process.flush_subnormals),
    ("patch", "torch.backends.cudnn", "benchmark"): (_flag, process.search_for_kernels),
    ("patch", "gc.freeze", "every"): (_whole(1), process.collect_by_hand),
    ("patch", "gc.collect", "every"): (_whole(1), calls.collect_seldom),
    ("patch", "torch.save", "in_background"): (_nothing, calls.save_in_background),
    ("patch", "torch.cuda.synchronize", ""): (_nothing, calls.leave_out_cuda),
    ("patch", "torch.cuda.empty_cache", ""): (_nothing, calls.leave_out_cuda),
    ("patch", "torch.distributed.barrier", ""): (_nothing, calls.leave_out_barriers),
    ("patch", "torch.utils.checkpoint", ""): (_nothing, calls.leave_out_checkpointing),
    ("patch", "transformers", "attn_implementation"): (_word, models.attention),
    **{("wrap", "DistributedDataParallel", flag): (_flag, arguments.distributed) for flag in DDP_FLAGS},
    ("wrap", "DistributedDataParallel", "bucket_cap_mb"): (_whole(1), arguments.distributed),
    ("wrap", "DistributedDataParallel", "comm_hook"): (_word, gradients.compress),
    ("wrap", "DistributedDataParallel", "no_sync"): (_nothing, gradients.no_sync),
    ("wrap", "channels_last", ""): (_nothing, models.to_channels_last),
    ("wrap", "torch.compile", ""): (_nothing, models.compile_model),
    ("wrap", "torch.compile", "mode"): (_word, models.compile_model),
    ("wrap", "torch.autocast", ""): (_nothing, models.autocast_model),
    ("wrap", "prefetch", ""): (_nothing, loaders.prefetch),
}
"""By kind, name of what is changed, and argument."""


def parsed(name: str) -> Trial | None:
    """A fix by its name; None if there is no such injection."""
    trial = split(name)
    if trial is None:
        return None
    if trial.kind == "env":
        return trial if all(name in VARIABLES for name, _ in trial.variables) else None
    takes, _ = FORMS.get((trial.kind, trial.name, trial.argument), (None, None))
    return trial if takes is not None and takes(trial.value) else None


def form_of(trial: Trial) -> Callable[[Injection], None]:
    """How to inject it. Of environment variables the parent sets them: only what is to be out has to go."""
    return _take_out if trial.kind == "env" else FORMS[(trial.kind, trial.name, trial.argument)][1]


def _take_out(injection: Injection) -> None:
    for name, value in injection.trial.variables:
        if not value:
            os.environ.pop(name, None)
