"""What torch's own pattern matcher ("TorchTidy") says of a planted case, to compare with."""

import json
import tempfile
from pathlib import Path

from benchmarks.blocks import spawned, train
from benchmarks.planted_cases import Trial

WARM_UP_STEPS, STEPS = 10, 3

NAMES = {
    "Extra CUDA Copy Pattern": ("tiny_copies", "pageable_copies", "copies_not_overlapped"),
    "FP32 MatMul Pattern": ("tf32_off", "no_mixed_precision"),
    "Optimizer Single Tensor Pattern": ("unfused_optimizer",),
    "Synchronized DataLoader Pattern": ("dataloader_starvation",),
    "Gradient Set To Zero Instead of None Pattern": ("zero_grad_memset",),
    "Enabling Bias in Conv2d Followed By BatchNorm Pattern": (),
    "Matrix Multiplication Dimension Not Aligned Pattern": ("misaligned_dimensions",),
}
"""Of each pattern, the rules of ours that give the same advice."""


def matched(trial: Trial) -> dict[str, int]:
    """How often each pattern was found in a few steps; those never found are left out."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "patterns.json")
        arguments = ["--level", trial.level, "--device", "cuda" if trial.on_gpu else "cpu"]
        spawned(_run, [(trial.case.module, arguments, str(told))])
        found: dict[str, int] = json.loads(told.read_text(encoding="utf-8"))
    return found


def _run(module: str, arguments: list[str], told: str) -> None:
    from torch.profiler import profile

    from sample_traces import harness

    profiler = profile(record_shapes=True, with_stack=True, profile_memory=True)
    stepped, taken = harness.Run.stepped, 0

    def profiled(run: harness.Run) -> bool:
        nonlocal taken
        taken += 1
        if taken == WARM_UP_STEPS:
            profiler.start()
        if taken < WARM_UP_STEPS + STEPS:
            return stepped(run)
        profiler.stop()
        Path(told).write_text(json.dumps(_found(profiler)), encoding="utf-8")
        return True

    harness.Run.stepped = profiled  # type: ignore[method-assign, assignment]
    train(module, arguments)


def _found(profiler: object) -> dict[str, int]:
    from torch.profiler import _pattern_matcher as own

    patterns = (
        own.ExtraCUDACopyPattern,
        own.FP32MatMulPattern,
        own.OptimizerSingleTensorPattern,
        own.SynchronizedDataLoaderPattern,
        own.GradNotSetToNonePattern,
        own.Conv2dBiasFollowedByBatchNorm2dPattern,
        own.MatMulDimInFP16Pattern,
    )
    asked = [pattern(profiler) for pattern in patterns]
    counts = {one.name: len(one.matched_events()) for one in asked}
    return {name: count for name, count in counts.items() if count}
