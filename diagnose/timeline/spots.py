"""Where on the timeline findings lie."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from diagnose.advice.ranking import Ranked
from diagnose.contracts.finding import RankedFinding
from diagnose.contracts.timeline import Spot
from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.replay.edits import Edit
from diagnose.replay.shown import selected
from diagnose.timeline.drawing import detailed
from diagnose.timeline.lanes import lanes, window
from diagnose.trace.intervals import IntArray, Intervals

MOST_SPOTS = 60  # Places of one finding on the timeline: the longest ones.


def on_timeline(facts: Facts, order: Ranked) -> tuple[RankedFinding, ...]:
    """The ranked findings with their places on the timeline."""
    found = []
    for one, edits in zip(order.findings, order.edits, strict=True):
        places, count = spots(facts, edits)
        found.append(msgspec.structs.replace(one, spots=places, spot_count=count))
    return tuple(found)


def spots(facts: Facts, edits: Sequence[Edit]) -> tuple[tuple[Spot, ...], int]:
    """The longest places on the timeline that edits touch, in order of time, and how many there are in all.

    Where the timeline shows one step in more detail, that step's places come first.
    """
    zero, end = window(facts)
    laid_out = lanes(facts)
    rows = [_rows(*selected(facts, edit), laid_out.lane, laid_out.first_of_track) for edit in edits]
    found = np.unique(np.concatenate(rows), axis=0) if rows else np.zeros((0, 3), dtype=np.int64)
    lane, start, stop = found[:, 0], np.maximum(found[:, 1], zero), np.minimum(found[:, 2], end)
    kept = np.flatnonzero((lane >= 0) & (stop > start))
    low, high = detailed(steps(facts), zero)
    typical = (start[kept] >= zero + low) & (start[kept] < zero + high)
    longest = kept[np.lexsort((start[kept] - stop[kept], ~typical))[:MOST_SPOTS]]
    order = longest[np.argsort(start[longest], kind="stable")]
    shown = tuple(Spot(int(lane[k]), int(start[k]) - zero, int(stop[k] - start[k])) for k in order.tolist())
    return shown, len(kept)


def _rows(times: Intervals, owner: IntArray | int, lane: IntArray, first_of_track: dict[int, int]) -> IntArray:
    """(lane, start, end) of each time; lane -1 where it has none."""
    at = first_of_track.get(owner, -1) if isinstance(owner, int) else lane[owner]
    return np.column_stack((np.broadcast_to(at, times.size), times.starts, times.ends))
