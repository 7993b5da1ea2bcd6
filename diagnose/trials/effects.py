"""Whether an injected fix took effect, by what the training process says of itself at its end."""

from __future__ import annotations

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
    if trial.name == "DataLoader":
        return _of_loaders(trial, rank)
    if trial.name == "torch.optim" and not any(one.fused for one in rank.optimizers):
        return "no optimizer that stepped is fused"
    if trial.name == "OMP_NUM_THREADS" and rank.flags.threads != int(trial.value):
        return f"torch computes with {rank.flags.threads} threads, which the script sets itself"
    if trial.name == "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" and rank.flags.cuda_matmul_allow_tf32 is False:
        return "torch does not allow TF32 all the same"
    return ""


def _of_loaders(trial: Trial, rank: RankManifest) -> str:
    """Of an argument of DataLoaders: those that the training asked for batches count."""
    used = [one for one in rank.loaders if one.asked]
    if any(getattr(one, trial.argument) == trial.value for one in used):
        return ""
    return f"no DataLoader that gave batches has {trial.argument}={trial.value}"
