"""Advice for the recorder and the devices that were used: facts speak of torch.profiler, rules of any GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from diagnose.facts.core.base import Facts
from diagnose.facts.digest import RankDigest
from diagnose.findings.finding import Finding, Fix, Outcome, RankedFinding, RuleName, Safety
from diagnose.trace.loaders import most_asked
from diagnose.trace.manifest import Loader, RankManifest
from diagnose.trace.model import Context, Device, IntegrityNote

_TORCH = "Nsight Systems does not record that: record with diagnose profile."

NSIGHT = {
    "device work": "Record with nsys profile --trace=cuda,nvtx.",
    "launches of device work": "Record with nsys profile --trace=cuda.",
    "runtime calls": "Record with nsys profile --trace=cuda.",
    "framework ops": "Record with nsys profile --pytorch=autograd-nvtx.",
    "shapes": "Record with nsys profile --pytorch=autograd-shapes-nvtx.",
    "marked steps": 'Mark them: torch.cuda.nvtx.range_push("step") before each step and range_pop() after it.',
    "backward passes": "Record with nsys profile --pytorch=autograd-nvtx.",
    "the backward pass": "Record with nsys profile --pytorch=autograd-nvtx.",
    "three steps or more": "Record more steps.",
    "DataLoader fetches": "Record with nsys profile --pytorch=autograd-nvtx.",
    "call stacks": "Record with diagnose profile --tracer nsys, or with nsys profile --python-sampling=true.",
    "memory events": "Record with diagnose profile --tracer nsys --memory.",
    "sizes of collectives": "Export with nsys export --include-blobs=true, which keeps what NCCL says of them.",
    "garbage collections": _TORCH,
    "checkpoints": _TORCH,
}
"""By what is missing."""

_NOTES = {
    "No framework ops were recorded.": "Kernels cannot be traced to ops, and all that the host does between calls "
    "counts as Python. Use --pytorch=autograd-nvtx.",
    "No training steps are marked.": "All figures are for the whole recorded window. Mark steps by NVTX ranges.",
    "Synchronisation events were not recorded.": "Which event a stream waits for has to be inferred.",
    "Input shapes were not recorded.": "FLOPs and bytes of ops are unknown. Use --pytorch=autograd-shapes-nvtx.",
    "Call stacks were not recorded.": "Source lines cannot be named. diagnose profile --tracer nsys finds them.",
}


def of_recorder(brief: RankDigest) -> RankDigest:
    """The digest with advice for its recorder."""
    if brief.provenance.format != "nsight":
        return brief
    absent = tuple(replace(one, how_to_record_it=NSIGHT.get(one.what, one.how_to_record_it)) for one in brief.absent)
    return replace(brief, absent=absent, integrity=tuple(map(_note, brief.integrity)))


def _note(note: IntegrityNote) -> IntegrityNote:
    return replace(note, effect=_NOTES.get(note.what, note.effect))


def for_recorder(recorder: str, outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes with advice for a recorder."""
    if recorder != "nsight":
        return tuple(outcomes)
    return tuple(
        msgspec.structs.replace(one, how_to_record_it=NSIGHT.get(one.why, one.how_to_record_it)) for one in outcomes
    )


_SETTING = re.compile(
    r"(?:patch|wrap):(DataLoader|torch\.optim|DistributedDataParallel)\((\w+)=([\w.]+)\)\Z|env:(\w+)=(.*)\Z"
)
"""A trial that sets one thing: what is made with which argument of which value; or a variable and its value."""


def not_in_force(facts: Facts, found: Iterable[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings without fixes that set what is set already, or to less; those without any other fix go."""
    context = facts.rank.context
    if context is None:
        return list(found)
    loaders = training_loaders(context.rank)
    left = []
    for page, finding in found:
        fixes = tuple(one for one in finding.fixes if not _in_force(one, context, loaders))
        if fixes or not finding.fixes:
            left.append((page, replace(finding, fixes=fixes)))
    return left


def training_loaders(rank: RankManifest) -> tuple[Loader, ...]:
    """The loader that the training takes its batches from; where that is not known, all of them."""
    most = most_asked(rank.loaders)
    return rank.loaders if most is None or not most.asked_timed else (most,)


def _in_force(fix: Fix, context: Context, loaders: tuple[Loader, ...]) -> bool:
    setting = _SETTING.match(fix.trial or "")
    if setting is None:
        return False
    owner, name, value, variable, variable_value = setting.groups()
    if variable:
        return context.environment.get(variable) == variable_value
    distributed = context.rank.distributed
    owners = {
        "DataLoader": [getattr(one, name, None) for one in loaders],
        "torch.optim": [getattr(one, name, None) for one in context.rank.optimizers],
        "DistributedDataParallel": [one.get(name) for one in distributed.ddp] if distributed else [],
    }[owner]
    return bool(owners) and all(_as_much(present, value) for present in owners)


def _as_much(present: object, value: str) -> bool:
    """Whether a setting is at least what is advised."""
    if value in ("True", "False"):
        return present is (value == "True")
    if isinstance(present, bool) or not isinstance(present, int | float):
        return str(present) == value
    return present >= float(value)


COMPILED_FROM = (7, 0)
"""Compute capability from which on torch.compile makes code for a GPU (Triton asks for it; AMD's are 8 and more)."""

_COMPILES = "wrap:torch.compile"


def for_devices(devices: Iterable[Device], findings: Iterable[RankedFinding]) -> tuple[RankedFinding, ...]:
    """The findings without advice that these devices cannot follow."""
    known = [one.compute_capability for one in devices if any(one.compute_capability)]
    if not any(one < COMPILED_FROM for one in known):
        return tuple(findings)
    return tuple(msgspec.structs.replace(one, fixes=_without_compiler(one.fixes)) for one in findings)


def _without_compiler(fixes: tuple[Fix, ...]) -> tuple[Fix, ...]:
    left = tuple(one for one in fixes if not (one.trial or "").startswith(_COMPILES))
    nothing = Fix(
        "Compiling would do it, but torch.compile makes no code for this GPU: write it with fewer ops.",
        safety=Safety.NEEDS_JUDGEMENT,
        effort=3,
    )
    return left or (nothing,)
