"""What edits touch, as people see it: how much of what they change."""

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np
from msgspec import Struct

from diagnose.costs.book import cost_book
from diagnose.costs.changes import Fused, Recost
from diagnose.facts.communication.job_times import own_time_ns
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.spans import in_used_steps
from diagnose.facts.core.steps import steps
from diagnose.replay.edits import (
    Detach,
    Edit,
    Estimate,
    Even,
    Move,
    Own,
    Rechunk,
    Remove,
    Replace,
    Shorten,
    Times,
    at,
    shares,
)
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.model import Ground


class ChangeKind(str, Enum):
    """What an edit does to what it selects."""

    SHORTEN = "shorten"
    REMOVE = "remove"
    DETACH = "detach"  # Nobody waits for it any more.
    MOVE = "move"  # It runs beside the rest.
    REPLACE = "replace"  # Several operations become one.
    EVEN = "even"  # Ranks take as long as others.
    RECOST = "recost"  # Device operations compute otherwise, or several become one.
    RECHUNK = "rechunk"  # A batch is cut into more micro-batches.


class Change(Struct, frozen=True):
    """One thing that a fix was replayed as."""

    kind: ChangeKind
    count: int  # Operations, calls or stretches of the used steps; ranks that take less; micro-batches a step.
    ns: int  # Time in which at least one of them went on, per step.
    left: tuple[float, float, float] | None  # As a share: low, likely, high. None: as long as before, elsewhere.


def change(facts: Facts, edit: Edit) -> Change:
    """What an edit does to the used steps."""
    used = steps(facts)
    if isinstance(edit, Even):
        return _evened(facts, edit)
    if isinstance(edit, Rechunk):
        return Change(ChangeKind.RECHUNK, edit.count, 0, None)
    times, owner = selected(facts, edit)
    if isinstance(owner, int):
        inside = (times.starts >= used.start_ns) & (times.starts < used.end_ns)
    else:
        inside = in_used_steps(facts, owner)
    within = intervals.union_of(times, inside)
    return Change(
        kind=_KINDS[type(edit)],
        count=int(inside.sum()),
        ns=round_half_up(within.total, used.count),
        left=_recost_left(facts, edit) if isinstance(edit, Recost) else _left(edit, times),
    )


_KINDS = {
    Shorten: ChangeKind.SHORTEN,
    Remove: ChangeKind.REMOVE,
    Detach: ChangeKind.DETACH,
    Move: ChangeKind.MOVE,
    Replace: ChangeKind.REPLACE,
    Recost: ChangeKind.RECOST,
}


def _evened(facts: Facts, edit: Even) -> Change:
    """How many ranks get less work, their time per step in all, and the share of it that is left; None if alone."""
    others = facts.rank.peers
    if others is None:
        return Change(ChangeKind.EVEN, 0, 0, None)
    less = np.flatnonzero((edit.keep < 1.0).any(axis=1))
    took_ns = others.compute_ns if edit.of is Own.COMPUTE else own_time_ns(others.job)[1]
    total = float(took_ns[less].sum())
    kept = float((took_ns * np.minimum(edit.keep, 1.0))[less].sum()) / max(total, 1.0)
    low, likely, high = (1.0 - at(edit.much, level) * (1.0 - kept) for level in Estimate)
    return Change(ChangeKind.EVEN, len(less), round(total / max(len(others.steps), 1)), (low, likely, high))


def _recost_left(facts: Facts, edit: Recost) -> tuple[float, float, float] | None:
    """Share of the time that stays with the new costs, by estimate; None without a cost book."""
    book = optional(cost_book, facts)
    if book is None:
        return None
    dur_ns = facts.rank.spans["dur_ns"].to_numpy()
    found = [book.left([edit], level) for level in Estimate]
    # Of ops between which there is Python, the call around them may be what is priced.
    whole = max(int(dur_ns[edit.what].sum()), *(int(dur_ns[left.ids].sum()) for left in found), 1)
    low, likely, high = (
        1 - float((dur_ns[left.gone].sum() + (dur_ns[left.ids] * (1 - left.share)).sum()) / whole) for left in found
    )
    return low, likely, high


def _left(edit: Edit, times: Intervals) -> tuple[float, float, float] | None:
    """Share of the time that stays after the edit (low, likely, high); None if it does not change times."""
    if isinstance(edit, Shorten):
        low, likely, high = shares(edit.keep).tolist()
    elif isinstance(edit, Move):
        low, likely, high = (1.0 / max(at(edit.times_faster, level), 1e-9) for level in Estimate)
    elif isinstance(edit, Replace):
        low, likely, high = (edit.dur_ns.sum(axis=1) / max(times.total, 1)).tolist()
    else:
        return (0.0, 0.0, 0.0) if isinstance(edit, Remove) else None
    return low, likely, high


def _waits_for(facts: Facts, edit: Even | Rechunk) -> IntArray:
    """Ids of this rank's calls that the edit is about: of Even those where a relieved rank is last; else transfers."""
    others = facts.rank.peers
    if others is None:
        return np.zeros(0, dtype=np.int64)
    job, found = others.job, list[int]()
    at = job.ranks.index(others.rank)
    less = np.flatnonzero((edit.keep < 1.0).any(axis=1)) if isinstance(edit, Even) else edit.pipelines
    for met in job.join_points:
        place = np.flatnonzero(met.ranks == at)
        last = met.ranks[met.arrived_ns.argmax()]
        if len(place) and (met.transfer if isinstance(edit, Rechunk) else last in less):
            found += job.sequences[at].calls.ids[met.calls[place]].tolist()
    return np.array(found, dtype=np.int64)


def times_by_track(facts: Facts, edits: Sequence[Edit]) -> dict[int, Intervals]:
    """When anything that these edits select goes on, by thread or stream."""
    found: dict[int, Intervals] = {}
    for edit in edits:
        times, owner = selected(facts, edit)
        track = np.full(times.size, owner) if isinstance(owner, int) else facts.rank.spans["track"].to_numpy()[owner]
        for one in np.unique(track).tolist():
            mine = Intervals(times.starts[track == one], times.ends[track == one])
            found[one] = intervals.merge(found.get(one, intervals.EMPTY), mine)
    return found


def selected(facts: Facts, edit: Edit) -> tuple[Intervals, IntArray | int]:
    """The times that an edit selects, and the spans, or the track, that they are of."""
    what = _waits_for(facts, edit) if isinstance(edit, Even | Rechunk) else edit.what
    if isinstance(what, Times):
        return what.pieces, what.track
    ids, spans = intervals.distinct(what), facts.rank.spans
    start = spans["start_ns"].to_numpy()[ids]
    return Intervals(start, start + spans["dur_ns"].to_numpy()[ids]), ids


def grounds(facts: Facts, edits: Sequence[Edit]) -> frozenset[Ground]:
    """The grounds that the savings of edits of this rank rest on. Those of host time and waits also rest on when the
    device is idle: only then does the host hold it up."""
    return frozenset(ground for edit in edits for ground in _grounds_of(facts, edit))


def _grounds_of(facts: Facts, edit: Edit) -> Iterator[Ground]:
    """The grounds that the saving of one edit rests on."""
    work = device_work(facts)
    if isinstance(edit, Even | Rechunk):
        yield from (Ground.RANKS, Ground.DEVICE_TIMES)
        return
    row = np.zeros(0, dtype=np.int64)
    if not isinstance(edit.what, Times):
        row = np.flatnonzero(np.isin(work.ids, edit.what))
    if len(row):
        yield Ground.DEVICE_TIMES
        if isinstance(edit, Remove | Replace) or (isinstance(edit, Recost) and isinstance(edit.change, Fused)):
            yield Ground.LAUNCHES
        if facts.rank.peers is not None and (work.work_class[row] == WorkClass.COMMUNICATION).any():
            yield Ground.RANKS
    if isinstance(edit.what, Times) or len(row) < len(np.unique(edit.what)):
        yield Ground.HOST_TIMES
        if len(work.ids):
            yield from (Ground.DEVICE_IDLE, Ground.CLOCKS)
