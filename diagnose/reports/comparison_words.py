"""The words for parts of a step, verdicts and changes, so that all reports of a comparison use the same."""

from __future__ import annotations

from diagnose.contracts.comparison import ChangeKind, PartKind
from diagnose.reports.words import CAUSES, WORK_NOT_RECORDED

VERDICTS = {"faster": "faster", "slower": "slower", "same": "no difference", "cannot_tell": "cannot tell"}

CHANGES = {
    ChangeKind.NEW: "new",
    ChangeKind.GONE: "gone",
    ChangeKind.MORE_CALLS: "more calls",
    ChangeKind.FEWER_CALLS: "fewer calls",
    ChangeKind.SLOWER: "slower",
    ChangeKind.FASTER: "faster",
    ChangeKind.LONGER: "longer",
    ChangeKind.SHORTER: "shorter",
    ChangeKind.REST: "all else",
}


_UNDIVIDED = {
    PartKind.EXPOSED_COMMUNICATION: "exposed communication",
    PartKind.EXPOSED_COPY: "exposed copies and fills",
    PartKind.WORK_NOT_RECORDED: WORK_NOT_RECORDED,
    PartKind.PROFILER: "profiler-overhead correction",
    PartKind.NOT_KNOWN: "not broken down on one side",
}


# A baseline of another version may know others.
_CAUSES = {cause.value: told for cause, told in CAUSES.items()}


def part_words(kind: PartKind, of: str) -> str:
    """What a part of the step is."""
    if kind is PartKind.COMPUTE:
        return f"compute: {of.replace('_', ' ')} kernels"
    if kind is PartKind.IDLE:
        return f"GPU idle: {_CAUSES.get(of, of)}"
    if kind is PartKind.HOST:
        return f"CPU: {_CAUSES.get(of, of)}"
    return _UNDIVIDED[kind]
