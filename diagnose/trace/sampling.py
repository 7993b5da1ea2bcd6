"""Source lines from samples of call stacks, for calls and for the pauses between them.

A sample tells the line of one moment. A call comes from one line, which so is known for all of it; in a pause lines
follow each other, and what counts is the function. A call that lasts too short to be met in one step is met in
another: calls that are the so-many-th of their kind in a step are the same.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.trace import enums, frames, intervals, schema
from diagnose.trace.enums import CALLS
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.model import VaryingShapes

REACHES = (4, 2, 1)  # Calls before and after that agree: as many as possible, fewer at loops' ends (our choice).
UNKNOWN = -1


class Sequence(Struct, frozen=True):
    """Calls in any order. Arrays of shape (calls,)."""

    what: IntArray  # Equal for calls of one name on one thread, in both recordings; -1 for what the other one lacks.
    track: IntArray
    start_ns: IntArray


def matching(ours: Sequence, theirs: Sequence, label: IntArray) -> IntArray:
    """For each of our calls one of theirs with the same calls around it, or -1. Shape (ours,).

    Only if all of theirs that have these around them have the same `label` (shape (theirs,)).
    """
    found = np.full(len(ours.what), UNKNOWN, dtype=np.int64)
    for reach in REACHES:
        left = np.flatnonzero((found < 0) & (ours.what >= 0))
        keys, first, group = np.unique(_keys(theirs, reach), return_index=True, return_inverse=True)
        if not len(left) or not len(keys):
            break
        differ = label != label[first][group.reshape(-1)]
        sure = np.bincount(group.reshape(-1), weights=differ, minlength=len(keys)) == 0
        mine = _keys(ours, reach)[left]
        at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
        some = (keys[at] == mine) & sure[at] & (theirs.what[first[at]] == ours.what[left])
        found[left[some]] = first[at[some]]
    return found


def _keys(calls: Sequence, reach: int) -> npt.NDArray[np.uint64]:
    """A hash of each call and of the `reach` calls before and after it on its thread."""
    order = np.lexsort((calls.start_ns, calls.track))
    edge = np.full(reach, -2)
    what, track = (np.concatenate((edge, values[order], edge)) for values in (calls.what, calls.track))
    count, hashes = len(order), np.zeros(len(order), dtype=np.uint64)
    here = track[reach : reach + count]
    for by in range(2 * reach + 1):
        on_thread = track[by : by + count] == here
        near = np.where(on_thread, what[by : by + count] + 3, 0).astype(np.uint64)
        hashes = (hashes ^ near) * np.uint64(0x100000001B3)  # FNV-1a's prime, of 64 bits.
    keys = np.empty(count, dtype=np.uint64)
    keys[order] = hashes
    return keys


def varying_shapes(spans: pd.DataFrame, ops: pd.DataFrame, steps: tuple[int, ...]) -> VaryingShapes:
    """The ops whose shape differs from each step to the next. `steps`: the numbers of all steps of the recording.

    Ops of two steps are the same if they are the so-many-th of a name on a thread, and all steps have as many of these.
    """
    none = np.zeros(0, dtype=np.int64)
    if not steps:
        return VaryingShapes((), (), none, none)
    ids = ops.index.to_numpy().astype(np.int64)
    step = spans["step"].to_numpy()[ids].astype(np.int64)
    ids, step = ids[step >= 0], step[step >= 0]
    names = spans["name"].cat
    thread = spans["track"].to_numpy()[ids].astype(np.int64)
    _, what = np.unique(thread * len(names.categories) + names.codes.to_numpy()[ids], return_inverse=True)
    group = what * len(steps) + step
    kinds = int(what.max(initial=-1)) + 1
    count = np.bincount(group, minlength=kinds * len(steps))
    place = ordinals(group)
    by_step = count.reshape(kinds, len(steps))
    whole = np.flatnonzero((by_step == by_step[:, :1]).all(axis=1)[what])
    whole = whole[np.lexsort((step[whole], place[whole], what[whole]))]
    same = ids[whole].reshape(-1, len(steps))
    codes = ops["shapes"].cat.codes.to_numpy()[ops.index.get_indexer(pd.Index(same.reshape(-1)))].reshape(same.shape)
    some = np.flatnonzero((np.diff(codes, axis=1) != 0).all(axis=1)) if len(steps) > 1 else none
    texts = ops["shapes"].cat.categories
    return VaryingShapes(
        steps=steps,
        shapes=tuple(tuple(str(texts[code]) for code in row) for row in codes[some].tolist()),
        ids=same[some].reshape(-1),
        which=np.repeat(np.arange(len(some)), len(steps)),
    )


CLOSE_NS = 3_000_000
"""Samples that are no further apart, and tell one line, tell it of what lies between (our choice: three times the
distance at the 1,000 Hz that nsys samples at unless told otherwise)."""


class Samples(Struct, frozen=True):
    """Moments at which lines are known. Arrays of shape (samples,)."""

    moment_ns: IntArray
    track: IntArray
    frame: IntArray  # Position in `names`.
    names: tuple[str, ...]  # Frames of the user's own code, as recorded.


class _Cells(Struct, frozen=True):
    """Calls that lie in no other, in order of thread and start, and the pauses after them.

    Arrays of shape (2 x calls,): first a call, then the pause until the next one on its thread, and so on.
    """

    start_ns: IntArray
    end_ns: IntArray
    track: IntArray
    same: IntArray  # A number that cells of different steps share if they are the same; -1 outside steps.


def lines(spans: pd.DataFrame, samples: Samples) -> pd.DataFrame:
    """The table `lines`: calls and pauses of which a sample tells the line."""
    cells = _cells(spans, np.unique(samples.track))
    frame = _from_neighbours(cells, _sampled(cells, samples))
    kept = np.flatnonzero((frame >= 0) & (cells.end_ns > cells.start_ns))
    kept = kept[np.argsort(cells.start_ns[kept], kind="stable")]
    names = pd.Categorical.from_codes(frame[kept], categories=pd.Index(samples.names, dtype="str"))
    nothing = pd.Categorical([""] * len(kept))
    times = Intervals(cells.start_ns[kept], cells.end_ns[kept])
    return lines_table(times, cells.track[kept], names, nothing, nothing, np.zeros(len(kept), dtype=np.int64))


_Names: TypeAlias = "pd.Categorical[Any]"


def lines_table(
    times: Intervals, track: IntArray, name: _Names, framework: _Names, callee: _Names, calls: IntArray
) -> pd.DataFrame:
    """The table `lines` of these columns, checked against the schema."""
    lasted, used = times.ends - times.starts, name.remove_unused_categories()
    made = pd.DataFrame({"start_ns": times.starts, "dur_ns": lasted, "track": track.astype(np.int32), "name": used})
    made = made.assign(framework=framework, callee=callee, calls=calls)
    schema.check(made, schema.LINES)
    return made


def _cells(spans: pd.DataFrame, tracks: IntArray) -> _Cells:
    """The outermost calls of these threads and the pauses behind them. A pause is the same where the calls before and
    behind it are; the last of a thread has none behind it."""
    kind, track = (spans["kind"].cat.codes.to_numpy(), spans["track"].to_numpy().astype(np.int64))
    ids = np.flatnonzero(np.isin(kind, [enums.code(call) for call in CALLS]) & np.isin(track, tracks))
    start = spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    ids = ids[intervals.parents(track[ids], start[ids], end[ids]) < 0]
    ids = ids[np.lexsort((start[ids], track[ids]))]
    last = np.append(track[ids][1:] != track[ids][:-1], True)[: len(ids)]
    until = np.where(last, end[ids], np.append(start[ids][1:], 0)[: len(ids)])
    names = spans["name"].cat
    what = (track[ids] * len(enums.SpanKind) + kind[ids]) * len(names.categories) + names.codes.to_numpy()[ids]
    same = _same(what, spans["step"].to_numpy()[ids].astype(np.int64))
    both = np.stack((same, np.append(same[1:], UNKNOWN)[: len(ids)]))
    following = numbered(both, (both >= 0).all(axis=0) & ~last) + int(same.max(initial=0)) + 1
    pause = np.where((both >= 0).all(axis=0) & ~last, following, UNKNOWN)
    return _Cells(
        start_ns=_alternating(start[ids], end[ids]),
        end_ns=_alternating(end[ids], until),
        track=np.repeat(track[ids], 2),
        same=_alternating(same, pause),
    )


def _alternating(first: IntArray, second: IntArray) -> IntArray:
    both: IntArray = np.stack((first, second), axis=1).reshape(-1)
    return both


def _same(what: IntArray, step: IntArray) -> IntArray:
    """A number per call, equal for calls of one `what` that are the n-th of equally many in their steps; -1 outside."""
    inside = step >= 0
    group = numbered(np.stack((step, what)), inside)
    count, ordinal = np.bincount(group[inside], minlength=1), np.zeros(len(what), dtype=np.int64)
    ordinal[inside] = ordinals(group[inside])
    return numbered(np.stack((what, count[group], ordinal)), inside)


def ordinals(group: IntArray) -> IntArray:
    """For each element its place among those of its group, from 0, in array order; groups are numbered from 0."""
    order, count = np.argsort(group, kind="stable"), np.bincount(group)
    found = np.empty(len(group), dtype=np.int64)
    found[order] = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
    return found


def numbered(keys: IntArray, some: npt.NDArray[np.bool_]) -> IntArray:
    """Numbers from 0 for the distinct columns of `keys`, of shape (keys, n); -1 where `some` is false."""
    number = np.zeros(int(some.sum()), dtype=np.int64)
    for key in keys:
        distinct, at = np.unique(key[some], return_inverse=True)
        _, number = np.unique(number * max(len(distinct), 1) + at.reshape(-1), return_inverse=True)
    found = np.full(len(some), UNKNOWN, dtype=np.int64)
    found[some] = number.reshape(-1)
    return found


def _sampled(cells: _Cells, samples: Samples) -> IntArray:
    """The frame with most samples in each cell and the same cells of other steps, as position in `names`; or -1."""
    cell = intervals.innermost_at(samples.moment_ns, samples.track, cells.track, cells.start_ns, cells.end_ns)
    inside = (cell >= 0) & (samples.moment_ns < np.append(cells.end_ns, 0)[cell])
    cell, frame = cell[inside], samples.frame[inside].astype(np.int64)
    pause = cell % 2 == 1
    frame[pause] = _hottest(frame[pause], samples.names)[frame[pause]]
    alone = int(cells.same.max(initial=UNKNOWN)) + 1 + np.arange(len(cells.same))
    unit = np.where(cells.same >= 0, cells.same, alone)
    pairs, count = np.unique(np.stack((unit[cell], frame)), axis=1, return_counts=True)
    order = np.lexsort((-pairs[1], count, pairs[0]))
    found = np.full(int(unit.max(initial=UNKNOWN)) + 1, UNKNOWN, dtype=np.int64)
    found[pairs[0][order]] = pairs[1][order]  # Of several the last one stays.
    of_cell: IntArray = found[unit]
    return of_cell


def _hottest(frame: IntArray, names: tuple[str, ...]) -> IntArray:
    """For each of `names` the frame of its function with most samples; `frame`: each sample's. Shape (names,)."""
    sites = [frames.frame_site(name) for name in names]
    functions: dict[tuple[str, str], int] = {}
    of_frame = np.array(
        [functions.setdefault((site.file, site.function) if site else ("", ""), len(functions)) for site in sites],
        dtype=np.int64,
    )
    order = np.argsort(np.bincount(frame, minlength=len(names)), kind="stable")
    best = np.zeros(len(functions), dtype=np.int64)
    best[of_frame[order]] = order
    found: IntArray = best[of_frame]
    return found


def _from_neighbours(cells: _Cells, frame: IntArray) -> IntArray:
    """The frames, with that of the cells before and after where none is known, if they are close and agree."""
    place = np.arange(len(frame))
    before = np.maximum.accumulate(np.where(frame >= 0, place, UNKNOWN))
    after = np.minimum.accumulate(np.where(frame >= 0, place, len(frame))[::-1])[::-1]
    between = np.flatnonzero((frame < 0) & (before >= 0) & (after < len(frame)))
    before, after = before[between], after[between]
    agree = (frame[before] == frame[after]) & (cells.track[before] == cells.track[after])
    agree &= cells.start_ns[after] - cells.end_ns[before] <= CLOSE_NS
    found = frame.copy()
    found[between[agree]] = frame[before[agree]]
    return found
