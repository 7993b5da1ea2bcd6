"""The ops of one recording at the times of another, which holds other steps of the same run, and no ops.

Each op that is recorded takes the host some 2 us on a machine with a GPU. So steps are recorded once more with runtime
calls and device work alone: these times are the truest. A call is the same in both recordings if it is on the same
thread, of the same name, starts the same work, and is the so-many-th of these in its step. What lies between two such
calls divides their time as it did where ops were recorded, without what recording them took. Work that no such call
started lies between the work around.
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from diagnose.trace import enums, steps
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.measured import EVENT_NS, FloatArray, moments, own_ns
from diagnose.trace.model import Ground, IntegrityNote, Rank, Severity, Step

LEAST_SHARE = 0.95  # Of device time: with less of it in both, the recordings hardly show the same steps (our choice).
BY_SPAN = ("kernels", "copies", "syncs", "collectives", "ops", "memory")  # Tables that are labelled by span id.
OPS = (SpanKind.OP, SpanKind.LOADER, SpanKind.ANNOTATION, SpanKind.COLLECTIVE)  # What is only recorded with ops.

UNKNOWN = -1


class _Side(Struct, frozen=True):
    """Calls and device work of the paired steps in one of the recordings. Arrays of shape (calls,) and (work,)."""

    bounds_ns: IntArray  # Of the steps, on the host. Shape (steps + 1,).
    start_ns: IntArray  # Of all spans.
    end_ns: IntArray
    calls: IntArray  # Span ids.
    step: IntArray  # Of each call, from 0.
    work: IntArray  # Span ids, by call and then in order of start.
    call_of_work: IntArray  # Positions in `calls`.

    @property
    def work_ns(self) -> IntArray:
        """Duration of each piece of work."""
        return (self.end_ns - self.start_ns)[self.work]


def retimed(rank: Rank, device: Rank, marks: tuple[Step, ...], op_ns: float = EVENT_NS) -> Rank:
    """`rank` at the times of `device`, with a note that says so; at its own if they do not show the same steps.

    `marks`: the steps of `device` on its clock. The last ones are those of `rank`, in order. `op_ns`: what recording an
    op takes the host.
    """
    count = len(rank.steps)
    if not count or len(marks) < count:
        return _not_retimed(rank, device, f"holds {len(marks)} of {count} steps")
    ours, theirs = _side(rank, rank.steps[-count:]), _side(device, marks[-count:])
    partner = _in_order(rank, ours, theirs, _partners(rank, device, ours, theirs))
    mine, other = _same_work(ours, theirs, partner)
    share = min(_share(ours, mine), _share(theirs, other))
    if share < LEAST_SHARE:
        return _not_retimed(rank, device, f"holds only {share:.0%} of the device's time in the same order")
    known = np.flatnonzero(partner >= 0)
    same = np.append(ours.calls[known], ours.work[mine]), np.append(theirs.calls[partner[known]], theirs.work[other])
    warps = _warps(rank, ours, theirs, same, op_ns)
    start, end = _warped(warps, rank.spans)
    start[same[0]], end[same[0]] = theirs.start_ns[same[1]], theirs.end_ns[same[1]]
    begun, ended = _warped(warps, rank.lines)
    said = f"Ops are of other steps of the same run; {share:.1%} of device time is in both."
    note = IntegrityNote(
        f"Times come from {Path(device.provenance.path).name}, which holds no ops.", said, Severity.NOTE
    )
    moved = replace(
        rank,
        lines=rank.lines.assign(start_ns=begun, dur_ns=ended - begun),
        steps=marks[-count:],
        zero_unix_ns=device.zero_unix_ns,
        provenance=replace(rank.provenance, timed_by=device.provenance.path),
        integrity=(*rank.integrity, *(one for one in device.integrity if one.doubts), note),
    )
    return _arranged(moved, start, end)


def without_first(rank: Rank, count: int) -> Rank:
    """The rank without its first `count` steps; the spans in them belong to no step then."""
    if not count:
        return rank
    step = rank.spans["step"].to_numpy()
    later = np.where(step >= count, step - count, steps.NO_STEP).astype(np.int32)
    return replace(rank, steps=rank.steps[count:], spans=rank.spans.assign(step=later))


def _side(rank: Rank, marks: tuple[Step, ...]) -> _Side:
    """Runtime calls of one recording in its marked steps, and the device work that they launch."""
    spans, links = rank.spans, rank.links
    start = spans["start_ns"].to_numpy()
    kind = spans["kind"].cat.codes.to_numpy()
    calls = np.flatnonzero(np.isin(kind, [enums.code(SpanKind.RUNTIME), enums.code(SpanKind.DRIVER)]))
    step = steps.assign(marks, start[calls])
    calls, step = calls[step >= 0], step[step >= 0]
    launch = links[links["kind"] == LinkKind.LAUNCH.value]
    launching, work = launch["from_id"].to_numpy(), launch["to_id"].to_numpy()
    position = np.full(len(spans), UNKNOWN, dtype=np.int64)
    position[calls] = np.arange(len(calls))
    inside = position[launching] >= 0
    launching, work = position[launching[inside]], work[inside]
    order = np.lexsort((work, launching))  # Span ids are in order of start.
    return _Side(
        bounds_ns=np.array([*(mark.start_ns for mark in marks), marks[-1].end_ns], dtype=np.int64),
        start_ns=start,
        end_ns=start + spans["dur_ns"].to_numpy(),
        calls=calls,
        step=step,
        work=work[order],
        call_of_work=launching[order],
    )


def _partners(rank: Rank, device: Rank, ours: _Side, theirs: _Side) -> IntArray:
    """For each of our calls the position of theirs that is the same, or -1."""
    texts = rank.spans["name"].cat.categories
    same_text = texts.get_indexer(device.spans["name"].cat.categories)
    own = _numbered(_identities(rank, ours, np.arange(len(texts))))
    other = _identities(device, theirs, same_text)
    threads = _same_threads(rank, device, own, other)
    other = _numbered(other.assign(track=threads[other["track"].to_numpy()]))
    found: IntArray = pd.MultiIndex.from_frame(other).get_indexer(pd.MultiIndex.from_frame(own)).astype(np.int64)
    found[(own[["track", "name"]] < 0).any(axis=1)] = UNKNOWN
    return found


def _same_threads(rank: Rank, device: Rank, own: pd.DataFrame, other: pd.DataFrame) -> IntArray:
    """For each track of `device` our thread that it is, or -1: by its id, else that with most calls alike.

    Kineto writes another number for a thread of which it has recorded no op yet.
    """
    labels = [pd.Index(one.tracks["process"] + " " + one.tracks["thread"]) for one in (rank, device)]
    found: IntArray = labels[0].get_indexer(labels[1]).astype(np.int64)
    counts = [identities.groupby(["name", "work", "track"]).size() for identities in (own, other)]
    both = counts[0].rename("own").reset_index().merge(counts[1].rename("other").reset_index(), on=["name", "work"])
    both = both[~both["track_y"].isin(np.flatnonzero(found >= 0)) & ~both["track_x"].isin(found)]
    alike = both.assign(calls=both[["own", "other"]].min(axis=1)).groupby(["track_y", "track_x"])["calls"].sum()
    for theirs, ours in alike.sort_values(ascending=False, kind="stable").index:
        if found[theirs] < 0 and ours not in found:
            found[theirs] = ours
    return found


def _identities(rank: Rank, side: _Side, text: IntArray) -> pd.DataFrame:
    """Per call its step, track, name, first work, amount of work. `text`: our code of each name of the rank, or -1."""
    spans = rank.spans
    first = np.full(len(side.calls), UNKNOWN, dtype=np.int64)
    some, at = np.unique(side.call_of_work, return_index=True)
    name = text[spans["name"].cat.codes.to_numpy()]
    first[some] = name[side.work[at]]
    return pd.DataFrame(
        {
            "step": side.step,
            "track": spans["track"].to_numpy()[side.calls].astype(np.int64),
            "name": name[side.calls],
            "work": first,
            "works": np.bincount(side.call_of_work, minlength=len(side.calls)),
        }
    )


def _numbered(identities: pd.DataFrame) -> pd.DataFrame:
    """The identities, with the place of each among equal ones, from 0, and how many these are. Shape (calls, 7)."""
    alike = identities.groupby(list(identities.columns), sort=False)["step"]
    return identities.assign(ordinal=alike.cumcount(), count=alike.transform("size"))


def _in_order(rank: Rank, ours: _Side, theirs: _Side, partner: IntArray) -> IntArray:
    """The partners, -1 for the fewest calls of each thread without which both recordings have one order."""
    found = partner.copy()
    track = rank.spans["track"].to_numpy()[ours.calls]
    some = np.flatnonzero(partner >= 0)
    for one in np.unique(track[some]):
        mine = some[track[some] == one]
        found[mine[~_rising(theirs.start_ns[theirs.calls[partner[mine]]])]] = UNKNOWN
    return found


def _rising(values: IntArray) -> npt.NDArray[np.bool_]:
    """A mask of as many values as possible that never fall. Solved apart between places that no value crosses."""
    kept = np.ones(len(values), dtype=bool)
    highest, lowest = np.maximum.accumulate(values), np.minimum.accumulate(values[::-1])[::-1]
    edges = np.flatnonzero(np.append(True, highest[:-1] <= lowest[1:]))
    for begin, end in pairwise([*edges.tolist(), len(values)]):
        if end - begin > 1:
            kept[begin:end] = _longest_rising(values[begin:end].tolist())
    return kept


def _longest_rising(values: list[int]) -> npt.NDArray[np.bool_]:
    """Which values form a longest subsequence that never falls (patience sorting)."""
    tails, tail_places, before = list[int](), list[int](), np.full(len(values), UNKNOWN)
    for place, value in enumerate(values):
        length = bisect_right(tails, value)
        before[place] = tail_places[length - 1] if length else UNKNOWN
        tails[length : length + 1], tail_places[length : length + 1] = [value], [place]
    kept, place = np.zeros(len(values), dtype=bool), tail_places[-1]
    while place != UNKNOWN:
        kept[place], place = True, int(before[place])
    return kept


def _same_work(ours: _Side, theirs: _Side, partner: IntArray) -> tuple[IntArray, IntArray]:
    """Positions in `ours.work` and `theirs.work` of work that is the same: the n-th of a call and of its partner."""
    mine = np.flatnonzero(partner[ours.call_of_work] >= 0)
    begin = np.searchsorted(theirs.call_of_work, np.arange(len(theirs.calls)))
    nth = mine - np.searchsorted(ours.call_of_work, ours.call_of_work[mine])
    return mine, begin[partner[ours.call_of_work[mine]]] + nth


def _share(side: _Side, same: IntArray) -> float:
    return float(side.work_ns[same].sum() / max(side.work_ns.sum(), 1))


_Own = Callable[[IntArray], FloatArray]  # How a thread's own time goes on.


class _Warp:
    """A map of times that keeps their order: through given points, between them by own time, and of slope 1 outside."""

    def __init__(self, before: IntArray, after: IntArray, own: _Own) -> None:
        self._own = own
        order = np.lexsort((after, before))
        before, after = before[order], after[order]
        kept = _rising(after) & np.append(np.diff(before) > 0, True)
        self._before, self._after = before[kept], after[kept]

    def __call__(self, times_ns: IntArray) -> IntArray:
        """Where the times lie after the map; they may be in any order."""
        inside = np.clip(times_ns, self._before[0], self._before[-1])
        found = np.interp(self._own(inside), self._own(self._before), self._after)
        moved: IntArray = np.rint(found).astype(np.int64)
        return moved + times_ns - inside


def _warps(rank: Rank, ours: _Side, theirs: _Side, same: tuple[IntArray, IntArray], op_ns: float) -> list[_Warp]:
    """How the times of each track of ours move, by the spans on it that are the `same` as some of theirs.

    A track without any moves as the host thread that has most.
    """
    mine, other = same
    on_device = rank.tracks["device"].to_numpy() >= 0
    track = rank.spans["track"].to_numpy()[mine]
    main = int(np.bincount(track[~on_device[track]], minlength=1).argmax())
    known = set(np.unique(track).tolist())
    warps = list[_Warp]()
    for one in range(len(on_device)):
        there = track == (one if one in known else main)
        before = [ours.start_ns[mine[there]], ours.end_ns[mine[there]]]
        after = [theirs.start_ns[other[there]], theirs.end_ns[other[there]]]
        if not (one in known and on_device[one]):
            before, after = [*before, ours.bounds_ns], [*after, theirs.bounds_ns]
        warps.append(_Warp(np.concatenate(before), np.concatenate(after), _own(rank, ours, one, op_ns)))
    return warps


def _own(rank: Rank, ours: _Side, track: int, op_ns: float) -> _Own:
    """From times to a track's own time, ns: of a host thread without the recording of its ops, of a stream all time."""
    kind = rank.spans["kind"].cat.codes.to_numpy()
    on_it = np.isin(kind, [enums.code(one) for one in OPS]) & (rank.spans["track"].to_numpy() == track)
    ops = np.flatnonzero(on_it)
    if not len(ops):
        return lambda times: times.astype(np.float64)
    at, spent = moments(ours.start_ns[ops], ours.end_ns[ops], np.full(len(ops), op_ns))
    own = own_ns(at, spent)
    before, past = at[0], at[-1]
    return lambda times: np.interp(times, at, own) + np.minimum(times - before, 0) + np.maximum(times - past, 0)


def _warped(warps: list[_Warp], table: pd.DataFrame) -> tuple[IntArray, IntArray]:
    """Starts and ends of the rows, moved to the times of the other recording thread by thread."""
    track, start = table["track"].to_numpy(), table["start_ns"].to_numpy().copy()
    end = start + table["dur_ns"].to_numpy()
    for one in np.unique(track).tolist():
        there = track == one
        start[there], end[there] = warps[one](start[there]), warps[one](end[there])
    return start, end


def _arranged(rank: Rank, start: IntArray, end: IntArray) -> Rank:
    """The rank with these times of its spans, in order of start, from 0; without OVERHEAD spans, which are of ops."""
    zero = min(int(start.min()), 0)
    order = np.lexsort((np.arange(len(start)), start))
    order = order[(rank.spans["kind"] != SpanKind.OVERHEAD.value).to_numpy()[order]]
    id_of = np.full(len(start), UNKNOWN, dtype=np.int64)
    id_of[order] = np.arange(len(order))
    moved = {"start_ns": start - zero, "dur_ns": end - start}
    spans = rank.spans.assign(**moved).iloc[order].reset_index(drop=True)
    links = rank.links.assign(**{one: id_of[rank.links[one].to_numpy()] for one in ("from_id", "to_id")})
    labels = {name: pd.Index(id_of[getattr(rank, name).index.to_numpy()], name="id") for name in BY_SPAN}
    tables: dict[str, Any] = {name: getattr(rank, name).set_axis(ids).sort_index() for name, ids in labels.items()}
    return replace(
        rank,
        spans=spans,
        links=links,
        lines=rank.lines.assign(start_ns=rank.lines["start_ns"] - zero),
        steps=tuple(Step(one.number, one.start_ns - zero, one.end_ns - zero) for one in rank.steps),
        zero_unix_ns=rank.zero_unix_ns + zero,
        **tables,
    )


def _not_retimed(rank: Rank, device: Rank, why: str) -> Rank:
    """The rank with its own times, and a note that says why."""
    what = "Times are those of steps in which ops were recorded, which takes the host time."
    effect = f"{Path(device.provenance.path).name} {why}. Record again for truer times."
    note = IntegrityNote(what, effect, Severity.WARNING, (Ground.RANKS,))
    return replace(rank, integrity=(*rank.integrity, note))
