"""What edits touch, as people see it: how much of what they change, and where it lies on the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.spans import in_used_steps
from diagnose.facts.core.steps import steps
from diagnose.facts.drawn.lanes import lanes, window
from diagnose.facts.drawn.timeline import detailed
from diagnose.replay.edits import Detach, Edit, Estimate, Move, Remove, Replace, Shorten, Times, at, shares
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals

MOST_SPOTS = 60
"""Places of one finding on the timeline: the longest ones."""


class ChangeKind(str, Enum):
    """What an edit does to what it selects."""

    SHORTEN = "shorten"
    REMOVE = "remove"
    DETACH = "detach"
    """Nobody waits for it any more."""
    MOVE = "move"
    """It runs beside the rest."""
    REPLACE = "replace"
    """Several operations become one."""


@dataclass(frozen=True)
class Change:
    """One thing that a fix was replayed as."""

    kind: ChangeKind
    count: int
    """Operations, calls or stretches of time in the used steps."""
    ns: int
    """Time in which at least one of them went on, per step."""
    left: tuple[float, float, float] | None
    """What is left of it as a share: low, likely, high. None where it takes as long as before, elsewhere."""


@dataclass(frozen=True)
class Spot:
    """A place on the timeline; ns from its start."""

    lane: int
    start_ns: int
    dur_ns: int


def change(facts: Facts, edit: Edit) -> Change:
    """What an edit does to the used steps."""
    used = steps(facts)
    times, owner = _selected(facts, edit)
    if isinstance(owner, int):
        inside = (times.starts >= used.start_ns) & (times.starts < used.end_ns)
    else:
        inside = in_used_steps(facts, owner)
    within = intervals.union(Intervals(times.starts[inside], times.ends[inside]))
    return Change(
        kind=_KINDS[type(edit)],
        count=int(inside.sum()),
        ns=round_half_up(within.total, used.count),
        left=_left(edit, times),
    )


_KINDS = {
    Shorten: ChangeKind.SHORTEN,
    Remove: ChangeKind.REMOVE,
    Detach: ChangeKind.DETACH,
    Move: ChangeKind.MOVE,
    Replace: ChangeKind.REPLACE,
}


def _left(edit: Edit, times: Intervals) -> tuple[float, float, float] | None:
    if isinstance(edit, Shorten):
        low, likely, high = shares(edit.keep).tolist()
        return low, likely, high
    if isinstance(edit, Move):
        low, likely, high = (1.0 / max(at(edit.times_faster, level), 1e-9) for level in Estimate)
        return low, likely, high
    if isinstance(edit, Replace):
        low, likely, high = (edit.dur_ns.sum(axis=1) / max(times.total, 1)).tolist()
        return low, likely, high
    return (0.0, 0.0, 0.0) if isinstance(edit, Remove) else None


def spots(facts: Facts, edits: Sequence[Edit]) -> tuple[tuple[Spot, ...], int]:
    """The longest places on the timeline that edits touch, in order of time, and how many there are in all.

    Where the timeline shows one step in more detail, that step's places come first.
    """
    zero, end = window(facts)
    laid_out = lanes(facts)
    rows = [_rows(*_selected(facts, edit), laid_out.lane, laid_out.first_of_track) for edit in edits]
    found = np.unique(np.concatenate(rows), axis=0) if rows else np.zeros((0, 3), dtype=np.int64)
    lane, start, stop = found[:, 0], np.maximum(found[:, 1], zero), np.minimum(found[:, 2], end)
    kept = np.flatnonzero((lane >= 0) & (stop > start))
    low, high = detailed(steps(facts), zero)
    typical = (start[kept] >= zero + low) & (start[kept] < zero + high)
    longest = kept[np.lexsort((start[kept] - stop[kept], ~typical))[:MOST_SPOTS]]
    order = longest[np.argsort(start[longest], kind="stable")]
    shown = tuple(Spot(int(lane[k]), int(start[k]) - zero, int(stop[k] - start[k])) for k in order.tolist())
    return shown, len(kept)


def _selected(facts: Facts, edit: Edit) -> tuple[Intervals, IntArray | int]:
    """The times that an edit selects, and the spans, or the track, that they are of."""
    what = edit.what
    if isinstance(what, Times):
        return what.pieces, what.track
    ids, spans = np.unique(what), facts.rank.spans
    start = spans["start_ns"].to_numpy()[ids]
    return Intervals(start, start + spans["dur_ns"].to_numpy()[ids]), ids


def _rows(times: Intervals, owner: IntArray | int, lane: IntArray, first_of_track: dict[int, int]) -> IntArray:
    """(lane, start, end) of each time; lane -1 where it has none."""
    at = first_of_track.get(owner, -1) if isinstance(owner, int) else lane[owner]
    return np.column_stack((np.broadcast_to(at, times.size), times.starts, times.ends))
