"""How to record what is missing, for the recorder that was used: facts speak of torch.profiler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from diagnose.contracts.finding import Outcome
from diagnose.facts.digest import RankDigest
from diagnose.trace.model import IntegrityNote

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


def in_digest(brief: RankDigest) -> RankDigest:
    """The digest with hints for its recorder."""
    if brief.provenance.format != "nsight":
        return brief
    absent = tuple(replace(one, how_to_record_it=NSIGHT.get(one.what, one.how_to_record_it)) for one in brief.absent)
    return replace(brief, absent=absent, integrity=tuple(map(_note, brief.integrity)))


def _note(note: IntegrityNote) -> IntegrityNote:
    return replace(note, effect=_NOTES.get(note.what, note.effect))


def in_outcomes(recorder: str, outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes with hints for a recorder."""
    if recorder != "nsight":
        return tuple(outcomes)
    return tuple(
        msgspec.structs.replace(outcome, how_to_record_it=NSIGHT.get(outcome.why, outcome.how_to_record_it))
        for outcome in outcomes
    )
