"""What other ways of reading the same recordings would say, to compare with."""

import json

from benchmarks.patterns import NAMES
from benchmarks.planted_cases import Trial
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding

_LOADER = ("dataloader_starvation", "dataloader_recreated")
_SYNC = ("scalar_syncs", "data_dependent_shapes", "explicit_synchronisation", "blocking_launches")
_COPY = ("pageable_copies", "copies_not_overlapped", "tiny_copies")
_RANKS = (
    *("exposed_communication", "ddp_overheads", "small_collectives", "small_buckets", "missing_no_sync"),
    *("barriers", "synchronised_norms", "straggler", "work_imbalance"),
)
_HOST = (
    *("launch_bound", "looped_ops", "cpu_oversubscription", "host_work", "python_overhead", "underfilled_gpu"),
    *("unused_memory", "unfused_optimizer", "zero_grad_memset", "recompilation"),
)
_MATMUL = ("tf32_off", "no_mixed_precision", "slow_matmul", "misaligned_dimensions")
_POINTWISE = ("unfused_pointwise", "copy_and_cast_churn", "no_mixed_precision")

MEANING = {
    "garbage_collection": ("garbage_collection",),
    "compile": ("recompilation",),
    "checkpoint": ("checkpoint_stalls",),
    "allocation": ("allocator_churn",),
    "sync": _SYNC,
    "loader": _LOADER,
    "other_rank": _RANKS,
    "host_copy": _COPY,
    "launch": _HOST,
    "ops": (*_HOST, *_MATMUL),
    "python": _HOST,
    "device_wait": (*_RANKS, *_COPY),
    "gemm": _MATMUL,
    "conv": ("no_mixed_precision", "tf32_off", "layout_conversions"),
    "attention": ("unfused_attention", "slow_attention_backend", "no_mixed_precision"),
    "softmax_loss": ("unfused_attention", *_POINTWISE),
    "layout": ("layout_conversions",),
    "memory": _COPY,
    "communication": _RANKS,
    "optimizer": ("unfused_optimizer",),
    "foreach": ("unfused_optimizer",),
    "fill": ("zero_grad_memset",),
    "copy": ("copy_and_cast_churn",),
    "elementwise": (*_POINTWISE, "unfused_optimizer"),
    "reduction": _POINTWISE,
    "norm": _POINTWISE,
}
"""What somebody may try who sees that most time goes there. Generous: one right guess of several counts as right."""


def largest_first(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The parts of a step, the longest first, each as the rules that it leads to: a table as all profilers show."""
    parts = {kernel_kind.label: kernel_kind.ns for kernel_kind in diagnosis.kernel_kinds or ()}
    for idle in diagnosis.idle or ():
        parts[idle.cause.value] = parts.get(idle.cause.value, 0) + idle.ns
    if not parts and diagnosis.host:
        # No device: the thread's own time is what there is.
        parts = {activity.value: ns for activity, ns in diagnosis.host.parts.items()}
    return [MEANING.get(name, ()) for name in sorted(parts, key=lambda name: -parts[name])]


def patterns(trial: Trial) -> list[tuple[str, ...]] | None:
    """What torch's pattern matcher found, the most frequent first, as rules of ours; None if it was not asked."""
    path = trial.case.folder / "patterns.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if trial.name not in known:
        return None
    counts: dict[str, int] = known[trial.name]
    return [NAMES[name] for name in sorted(counts, key=lambda name: -counts[name])]


def summed_ns(finding: RankedFinding, diagnosis: Diagnosis) -> int:
    """The time of what the fix changes, as far as it goes away: what tools without a replay would promise."""
    gone = sum(change.ns * (1.0 - change.left[1]) for change in finding.changes if change.left is not None)
    recorded_ns = diagnosis.replay.step_time_ns if diagnosis.replay else 1
    return min(round(gone * (diagnosis.step_ns or 0) / max(recorded_ns, 1)), diagnosis.step_ns or 0)
