"""The words for causes, activities and what is waited for, so that every report uses the same."""

from __future__ import annotations

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import OutcomeKind
from diagnose.facts.core.host import HostActivity
from diagnose.facts.core.idle import IdleCause
from diagnose.fixes.setting import Safety
from diagnose.replay.critical_path import PathKind
from diagnose.replay.saving import Basis

CAUSES = {
    IdleCause.GARBAGE_COLLECTION: "Python garbage collection",
    IdleCause.COMPILE: "compilation (torch.compile)",
    IdleCause.CHECKPOINT: "checkpoint saving",
    IdleCause.ALLOCATION: "device memory allocation",
    IdleCause.SYNC: "host synchronisation",
    IdleCause.LOADER: "data loading",
    IdleCause.OTHER_RANK: "waiting for other ranks",
    IdleCause.HOST_COPY: "blocking copy calls",
    IdleCause.LAUNCH: "slow launch calls",
    IdleCause.BLOCKED: "waiting in the operating system",
    IdleCause.OPS: "CPU op overhead (launch-bound)",
    IdleCause.PYTHON: "Python overhead",
    IdleCause.DEVICE_WAIT: "waiting for another stream",
    IdleCause.BETWEEN_KERNELS: "gaps between queued kernels",
    IdleCause.HOST_NOT_RECORDED: "host not recorded",
    IdleCause.UNKNOWN: "unknown: the launch was not recorded",
}

GRAPH_NOT_RECORDED = "inside a CUDA graph, not recorded"

ACTIVITIES = {
    HostActivity.GARBAGE_COLLECTION: "garbage collection",
    HostActivity.COMPILE: "compiling",
    HostActivity.CHECKPOINT: "writing a checkpoint",
    HostActivity.ALLOCATION: "allocating device memory",
    HostActivity.SYNC: "waiting for the GPU",
    HostActivity.LOADER: "fetching batches",
    HostActivity.OTHER_RANK: "waiting for other ranks",
    HostActivity.HOST_COPY: "in copy calls",
    HostActivity.LAUNCH: "in launch calls",
    HostActivity.BLOCKED: "waiting in the operating system",
    HostActivity.OPS: "in framework ops",
    HostActivity.NOT_RECORDED: "not recorded",
    HostActivity.PYTHON: "in Python between ops",
}

PATHS = {
    PathKind.COMPUTE: "compute",
    PathKind.COMMUNICATION: "communication",
    PathKind.COPY: "copies",
    PathKind.BETWEEN_KERNELS: "gaps between queued kernels",
    PathKind.DEVICE_WAIT: "waiting for another stream",
    PathKind.LAUNCH: "kernel launch",
    PathKind.GARBAGE_COLLECTION: "Python garbage collection",
    PathKind.COMPILE: "compilation (torch.compile)",
    PathKind.CHECKPOINT: "checkpoint saving",
    PathKind.ALLOCATION: "device memory allocation",
    PathKind.SYNC: "host synchronisation",
    PathKind.LOADER: "data loading",
    PathKind.OTHER_RANK: "waiting for other ranks",
    PathKind.HOST_COPY: "copy calls",
    PathKind.BLOCKED: "waiting in the operating system",
    PathKind.OPS: "CPU time in ops",
    PathKind.PYTHON: "Python between ops",
    PathKind.NOT_RECORDED: "host not recorded",
    PathKind.UNEXPLAINED: "not explained by the recording",
}

BASES = {
    Basis.REPLAYED: "found by replaying the step without it",
    Basis.BOUNDED: "an upper bound: the replay explains too little of this recording",
    Basis.RULE_OF_THUMB: "replayed with a typical speed-up for this fix",
}

SAFETY = {
    Safety.SAME_NUMBERS: "bit-identical results",
    Safety.ROUNDING: "same results up to rounding",
    Safety.PRECISION: "less precise arithmetic: compare the loss",
    Safety.NEEDS_JUDGEMENT: "changes the training: your judgement",
}

OUTCOMES = {
    OutcomeKind.FOUND: "found something",
    OutcomeKind.CLEAN: "clean",
    OutcomeKind.NOT_APPLICABLE: "do not apply",
    OutcomeKind.CANNOT_TELL: "cannot tell",
    OutcomeKind.CRASHED: "failed",
}


def infers(diagnosis: Diagnosis) -> bool:
    """Whether the program is known to be inference: then nothing of it is called a training."""
    return diagnosis.program is not None and diagnosis.program.infers


def threads(diagnosis: Diagnosis) -> str:
    """The host threads that drive the device."""
    return "launching threads" if infers(diagnosis) else "training threads"


def safety(diagnosis: Diagnosis, level: Safety) -> str:
    """What a fix does to results, in words."""
    if level is Safety.NEEDS_JUDGEMENT and infers(diagnosis):
        return "changes what is computed: your judgement"
    if level is Safety.PRECISION and infers(diagnosis):
        return "less precise arithmetic: compare the results"
    return SAFETY[level]


def why_this_rank(diagnosis: Diagnosis) -> str:
    """Why one rank is shown of several, as an apposition."""
    waits = any(one.waiting_ns for one in diagnosis.ranks)
    return "which the others wait for" if waits else "the slowest"
