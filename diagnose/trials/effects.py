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
        why = "" if rank.arm is None else rank.arm.refused.get(fix, "")
        return why or "no line of the script was met that it changes"
    each = [trial._replace(name=name, value=value) for name, value in trial.variables] or [trial]
    return next((why for one in each if (check := CHECKS.get(one.name)) and (why := check(one, rank))), "")


def _of_loaders(trial: Trial, rank: RankManifest) -> str:
    """Of an argument of DataLoaders: those that the training asked for batches count."""
    used = [one for one in rank.loaders if one.asked]
    if trial.argument == "batch_size" or any(getattr(one, trial.argument) == trial.value for one in used):
        return ""
    return f"no DataLoader that gave batches has {trial.argument}={trial.value}"


def _of_optimizers(trial: Trial, rank: RankManifest) -> str:
    said = any(getattr(one, trial.argument) == trial.value for one in rank.optimizers)
    loaded = "; state that is loaded from a checkpoint sets it back"
    return "" if said else f"no optimizer that stepped has {trial.argument}={trial.value}{loaded}"


def _of_ddp(trial: Trial, rank: RankManifest) -> str:
    """Of options that DDP says of itself."""
    said = [one[trial.argument] for one in (rank.distributed.ddp if rank.distributed else ()) if trial.argument in one]
    if not said or trial.value in said:
        return ""
    return f"DistributedDataParallel has {trial.argument}={said[0]} all the same"


def _of_autocast(trial: Trial, rank: RankManifest) -> str:
    entered = "bfloat16" in rank.flags.autocast.values()
    return "" if entered else "autocast to bfloat16 was not entered"


def _of_threads(trial: Trial, rank: RankManifest) -> str:
    threads = rank.flags.threads
    asked = str(trial.value)  # Empty: the variable is taken out, and torch counts cores.
    return "" if asked in ("", str(threads)) else f"torch computes with {threads} threads, which the script sets itself"


def _of_anomalies(trial: Trial, rank: RankManifest) -> str:
    return "anomaly detection is on all the same" if rank.flags.anomaly_mode else ""


def _of_determinism(trial: Trial, rank: RankManifest) -> str:
    still = rank.flags.deterministic_algorithms is not trial.value
    return "deterministic algorithms are on all the same" if still else ""


def _of_tf32(trial: Trial, rank: RankManifest) -> str:
    if rank.flags.cuda_matmul_allow_tf32 is False:
        return "torch does not allow TF32 all the same"
    return _of_gpus(trial, rank)


def _of_gpus(trial: Trial, rank: RankManifest) -> str:
    return "" if rank.allocator else f"PyTorch used no GPU, to which {trial.name} applies"


def _of_benchmark(trial: Trial, rank: RankManifest) -> str:
    return "" if rank.flags.cudnn_benchmark else "the script switches cudnn.benchmark off"


CHECKS: dict[str, Callable[[Trial, RankManifest], str]] = {
    "DataLoader": _of_loaders,
    "DistributedDataParallel": _of_ddp,
    "torch.optim": _of_optimizers,
    "torch.autocast": _of_autocast,
    "OMP_NUM_THREADS": _of_threads,
    "torch.set_num_threads": _of_threads,
    "set_detect_anomaly": _of_anomalies,
    "torch.use_deterministic_algorithms": _of_determinism,
    "torch.backends.cudnn": _of_benchmark,
    "CUDA_LAUNCH_BLOCKING": _of_gpus,
    "NVIDIA_TF32_OVERRIDE": _of_gpus,
    "PYTORCH_ALLOC_CONF": _of_gpus,
    "PYTORCH_CUDA_ALLOC_CONF": _of_gpus,
    "PYTORCH_HIP_ALLOC_CONF": _of_gpus,
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _of_gpus,
    "PYTORCH_NO_HIP_MEMORY_CACHING": _of_gpus,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _of_tf32,
}
"""By what a fix changes: a clause on why it is not in force all the same. Of the others the process itself tells."""
