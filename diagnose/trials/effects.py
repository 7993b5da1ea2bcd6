"""Whether an injected fix took effect, by what the training process says of itself at its end."""

from __future__ import annotations

from collections.abc import Callable

from diagnose.capture.agent.injection import Trial, parsed
from diagnose.trace.manifest import RankManifest


def why_none(fix: str, rank: RankManifest) -> str:
    """A clause on why the fix is not in force in this process; empty if it is."""
    trial = parsed(fix)
    assert trial is not None, fix
    if rank.arm is None or not rank.arm.injected.get(fix):
        if trial.kind == "env":
            return f"the script sets {trial.name} itself"
        return "no line of the script was met that it changes"
    check = CHECKS.get(trial.name)
    return "" if check is None else check(trial, rank)


def _of_loaders(trial: Trial, rank: RankManifest) -> str:
    """Of an argument of DataLoaders: those that the training asked for batches count."""
    used = [one for one in rank.loaders if one.asked]
    if any(getattr(one, trial.argument) == trial.value for one in used):
        return ""
    return f"no DataLoader that gave batches has {trial.argument}={trial.value}"


def _of_optimizers(trial: Trial, rank: RankManifest) -> str:
    return "" if any(one.fused for one in rank.optimizers) else "no optimizer that stepped is fused"


def _of_threads(trial: Trial, rank: RankManifest) -> str:
    threads = rank.flags.threads
    return "" if threads == int(trial.value) else f"torch computes with {threads} threads, which the script sets itself"


def _of_anomalies(trial: Trial, rank: RankManifest) -> str:
    return "anomaly detection is on all the same" if rank.flags.anomaly_mode else ""


def _of_tf32(trial: Trial, rank: RankManifest) -> str:
    return "torch does not allow TF32 all the same" if rank.flags.cuda_matmul_allow_tf32 is False else ""


def _of_benchmark(trial: Trial, rank: RankManifest) -> str:
    return "" if rank.flags.cudnn_benchmark else "the script switches cudnn.benchmark off"


CHECKS: dict[str, Callable[[Trial, RankManifest], str]] = {
    "DataLoader": _of_loaders,
    "torch.optim": _of_optimizers,
    "OMP_NUM_THREADS": _of_threads,
    "torch.set_num_threads": _of_threads,
    "set_detect_anomaly": _of_anomalies,
    "torch.backends.cudnn": _of_benchmark,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _of_tf32,
}
"""By what a fix changes: a clause on why it is not in force all the same. Of the others the changed lines tell."""
