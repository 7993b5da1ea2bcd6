"""The manifest that `diagnose profile` would write of a simulated training: its settings, and how long steps took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.simulated.kineto import unix_ns
from benchmarks.simulated.machine import Recorder, Recording
from benchmarks.simulated.training import Training

SCRIPT = "/home/user/train.py"
ANOTHER_CALL = {"file": SCRIPT, "function": "main"}
CORES = 96
"""Of a machine with eight GPUs."""


def manifest(training: Training, traces: Sequence[str], times: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Of all ranks, whose traces have these names; `times` of steps are the same of all, if they were taken."""
    return {
        "schema_version": 1,
        "complete": True,
        "command": ["python", "train.py"],
        "host": {"system": "Linux", "cpus": CORES, "cpus_allowed": CORES},
        "versions": {"python": "3.12.3", "torch": "2.11.0", "cuda": "13.0"},
        "environment": {"CUDA_LAUNCH_BLOCKING": "1"} if training.blocking else {},
        "devices": [
            {
                "index": 0,
                "name": training.gpu.name,
                "memory_bytes": training.gpu.memory_bytes,
                "compute_capability": training.gpu.capability,
                "multiprocessors": training.gpu.sms,
            }
        ],
        "ranks": [{**_rank(training, rank, len(traces), trace), **(times or {})} for rank, trace in enumerate(traces)],
    }


def timed(recording: Recording) -> dict[str, Any]:
    """Steps by the clocks of the process and of the device, and where they are in time."""
    bounds = [start for start, _ in recording.steps] + [recording.steps[-1][1]]
    phases = {phase: [one[phase] for one in recording.phases_ns] for phase in recording.phases_ns[0]}
    return {
        "first_step": recording.first_step,
        "wall_ns": [end - start for start, end in pairwise(bounds)],
        "device_ns": [end - start for start, end in pairwise(recording.done_ns)],
        "bounds_unix_ns": [unix_ns(bound) for bound in bounds],
        "phases_ns": {phase: spent for phase, spent in phases.items() if any(spent)},
    }


def event_cost(recorder: Recorder) -> dict[str, float]:
    """What one event costs the host, as a loop of events would tell."""
    return {"op_ns": recorder.op_ns * recorder.clock, "call_ns": recorder.call_ns * recorder.clock}


def _rank(training: Training, rank: int, ranks: int, trace: str) -> dict[str, Any]:
    return {
        "rank": rank,
        "world_size": ranks,
        "peers": min(ranks, training.gpus),
        "trace": trace,
        "steps_by": "optimizer",
        "steady": True,
        "loaders": [_loader(training)],
        "optimizers": [_optimizer(training)],
        "flags": {
            "cuda_matmul_allow_tf32": training.tf32,
            "cudnn_allow_tf32": training.tf32,
            "autocast": {"cuda": training.half} if training.half else {},
            "grad_scaler": training.scaler,
            "compiled": training.compiled,
        },
        **_distributed(training),
    }


def _loader(training: Training) -> dict[str, Any]:
    loading = training.loading
    call = f"DataLoader(data, batch_size={training.model.batch}, num_workers={loading.workers})"
    return {
        "dataset": "Data",
        "batch_size": training.model.batch,
        "num_workers": loading.workers,
        "pin_memory": loading.pinned,
        "prefetch_factor": 2 if loading.workers else None,
        "persistent_workers": True,
        "batches": 64,
        "fetch_ns": round(loading.batch_ms * 1e6),
        "fetch_cpu_ns": round(loading.batch_ms * 1e6),
        "asked": 64,
        "asked_timed": 30,
        "made": {**ANOTHER_CALL, "line": 40, "call": call},
    }


def _optimizer(training: Training) -> dict[str, Any]:
    form = {training.form: True} if training.form in ("fused", "foreach") else {"foreach": False}
    call = f"torch.optim.{training.optimizer}(model.parameters(), lr=0.001)"
    made = {**ANOTHER_CALL, "line": 44, "call": call}
    return {"name": training.optimizer, **form, "devices": ["cuda"], "dtypes": {"float32": 1}, "made": made}


def _distributed(training: Training) -> dict[str, Any]:
    ddp = training.distributed
    if ddp is None:
        return {}
    options = [] if ddp.by_hand else [{"bucket_cap_mb": round(ddp.bucket_mb), "static_graph": False}]
    return {"distributed": {"backend": "nccl", "ddp": options}}
