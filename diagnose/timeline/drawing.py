"""What a page draws of the used steps: marks in lanes, the device's idle gaps, and the critical path."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from diagnose.advice.ranking import Ranked
from diagnose.contracts.finding import RankedFinding
from diagnose.contracts.timeline import KINDS, MARK_KINDS, MARK_OF_PATH, PATH, MarkKind, MarkTable, Spot, Timeline
from diagnose.facts.core.base import Facts, once, optional
from diagnose.facts.core.breakdown import ON_DEVICE, PATH_CAUSES, device_time
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.steps import Measure, Steps, steps
from diagnose.replay.critical_path import critical_path
from diagnose.replay.edits import Edit
from diagnose.replay.shown import selected
from diagnose.timeline.marks import Lanes, Marks, lanes, window
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.units import clipped

MOST_SPOTS = 60  # Places of one finding on the timeline: the longest ones.


def on_timeline(facts: Facts, order: Ranked) -> tuple[RankedFinding, ...]:
    """The ranked findings with their places on the timeline."""
    found = []
    for one, edits in zip(order.findings, order.edits, strict=True):
        places, count = spots(facts, edits)
        found.append(replace(one, spots=places, spot_count=count))
    return tuple(found)


def spots(facts: Facts, edits: Sequence[Edit]) -> tuple[tuple[Spot, ...], int]:
    """The longest places on the timeline that edits touch, in order of time, and how many there are in all.

    Of more than MOST_SPOTS, those in the most typical step, which may be shown in more detail, are kept before others.
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
    """(lane, start, end) of each time; lane -1: none. `owner`: its span, or one track, which means its first lane."""
    at = first_of_track.get(owner, -1) if isinstance(owner, int) else lane[owner]
    return np.column_stack((np.broadcast_to(at, times.size), times.starts, times.ends))


def pieces(shown: Timeline) -> Iterator[tuple[MarkTable, int, int]]:
    """Tables, each with the part of the timeline (from, to; in ns) in which it is the most detailed one."""
    whole, *detail = shown.tables
    for table in detail:
        yield table, table.start_ns, table.end_ns
    if detail:
        yield whole, whole.start_ns, detail[0].start_ns
        yield whole, detail[-1].end_ns, whole.end_ns
    else:
        yield whole, whole.start_ns, whole.end_ns


def marks(shown: Timeline, start_ns: int, end_ns: int, lanes: Collection[int] | None = None) -> Marks:
    """The marks in [start, end), cut off at its ends; of these lanes, or all. In order of lane and start."""
    parts = [
        Marks.of(table).within(max(low, start_ns), min(high, end_ns))
        for table, low, high in pieces(shown)
        if max(low, start_ns) < min(high, end_ns)
    ] or [Marks.of(shown.tables[0]).within(0, 0)]
    found = Marks.joined(*parts)
    if lanes is not None:
        found = found.where(np.isin(found.lane, list(lanes)))
    return found.in_order()


def lane_name(shown: Timeline, lane: int) -> str:
    """A lane's name; lanes below the first of a thread have its name."""
    return shown.lanes[lane].name or lane_name(shown, lane - 1)


def label(shown: Timeline, number: int, kind: int) -> str:
    """The name of a mark, or of its kind where it has none."""
    return shown.labels[number] or shown.kinds[kind]


MOST_MARKS = 16_000
"""Marks of all used steps, and again of the detailed one: with coarser copies, a page draws some 50,000."""

MOST_NAME = 160  # Characters of a name.


@once
def timeline(facts: Facts) -> Timeline:
    """The used steps as marks. Raises Missing if no step can be measured."""
    used, laid_out, spans = steps(facts), lanes(facts), facts.rank.spans
    ids = np.flatnonzero((laid_out.lane >= 0) & (laid_out.kind >= 0))
    start, dur = (spans[name].to_numpy()[ids] for name in ("start_ns", "dur_ns"))
    codes, kind = spans["name"].cat.codes.to_numpy()[ids], laid_out.kind[ids]
    marks = Marks.single(laid_out.lane[ids], start, dur, codes.astype(np.int64), kind.astype(np.int64))
    number = {site: -1 - k for k, site in enumerate(_sites(facts))}
    zero, end = window(facts)
    marks = Marks.joined(marks.within(zero, end), _idle_marks(facts, number), _path_marks(facts, laid_out, number))
    marks = replace(marks, start_ns=marks.start_ns - zero).in_order()
    cut = [(0, end - zero, marks)]
    if marks.size > MOST_MARKS:
        low, high = detailed(used, zero)
        cut.append((low, high, marks.within(low, high)))
    merged = [(low, high, *part.at_most(MOST_MARKS, high - low)) for low, high, part in cut]
    labels, tables = _labelled(facts, merged)
    return Timeline(
        dur_ns=end - zero,
        steps=() if used.measure is Measure.WINDOW else used.numbers,
        bounds_ns=tuple((used.bounds_ns - zero).tolist()),
        lanes=laid_out.lanes,
        labels=labels,
        kinds=KINDS,
        tables=tables,
        left_out=laid_out.left_out,
    )


def detailed(used: Steps, zero_ns: int) -> tuple[int, int]:
    """(start, end) of the most typical step, whose time is nearest to the median, in ns from `zero_ns`."""
    times = used.times_ns
    typical = int(np.abs(times - np.median(times)).argmin())
    low, high = used.bounds_ns[typical : typical + 2] - zero_ns
    return int(low), int(high)


NO_MARKS = Marks(*(np.zeros(0, dtype=np.int64) for _ in range(7)))


def _sites(facts: Facts) -> list[Site | None]:
    """The lines that marks are labelled with, after None: the label -1 stands for None, -2 for the first line."""
    gaps, path = optional(idle_gaps, facts), optional(critical_path, facts)
    return list(dict.fromkeys([None, *(gaps.sites if gaps else ()), *(path.sites if path else ())]))


def _path_marks(facts: Facts, laid_out: Lanes, number: dict[Site | None, int]) -> Marks:
    """The critical path: the device's work by name, other stretches by the line that they come from."""
    path = optional(critical_path, facts)
    if path is None:
        return NO_MARKS
    name = facts.rank.spans["name"].cat.codes.to_numpy()[path.owner]
    site = np.array([number[one] for one in path.sites], dtype=np.int64)
    kind_of = [
        KINDS.index(MARK_OF_PATH[kind].value if kind in MARK_OF_PATH else PATH + kind.value) for kind in PATH_CAUSES
    ]
    return Marks.single(
        lane=np.full(len(path.kind), [lane.group for lane in laid_out.lanes].index("path")),
        start_ns=path.start_ns,
        dur_ns=path.end_ns - path.start_ns,
        label=np.where(np.isin(path.kind, [PATH_CAUSES.index(one) for one in ON_DEVICE]), name, site),
        kind=np.array(kind_of, dtype=np.int64)[path.kind],
    )


def _idle_marks(facts: Facts, number: dict[Site | None, int]) -> Marks:
    """Idle gaps in the first lane, labelled with their line, and stretches in which device work was not recorded."""
    found = optional(idle_gaps, facts)
    if found is None:
        return NO_MARKS
    holes = device_time(facts).work_not_recorded
    starts = np.concatenate((found.gaps.starts, holes.starts))
    order, hole = np.argsort(starts), np.full(holes.size, MARK_KINDS.index(MarkKind.WORK_NOT_RECORDED))
    label = [*(number[site] for site in found.sites), *[number[None]] * holes.size]
    return Marks.single(
        lane=np.zeros(len(starts), dtype=np.int64),
        start_ns=starts[order],
        dur_ns=(np.concatenate((found.gaps.ends, holes.ends)) - starts)[order],
        label=np.array(label, dtype=np.int64)[order],
        kind=np.concatenate((found.cause.astype(np.int64) + len(MarkKind), hole))[order],
    )


def _labelled(facts: Facts, merged: list[tuple[int, int, Marks, int]]) -> tuple[tuple[str, ...], tuple[MarkTable, ...]]:
    """The distinct labels; per item of `merged` (from, to, marks, resolution) a table with positions in them."""
    codes = np.unique(np.concatenate([marks.label for _, _, marks, _ in merged]))
    names = facts.rank.spans["name"].cat.categories
    sites = _sites(facts)

    def text(code: int) -> str:
        if code >= 0:
            return clipped(str(names[code]), MOST_NAME)
        site = sites[-code - 1]
        return "" if site is None else site.place

    texts = [text(int(code)) for code in codes]
    labels = list(dict.fromkeys(texts))[: 1 << 16]
    number = {label: k for k, label in enumerate(labels)}
    position = np.array([number.get(one, 0) for one in texts], dtype=np.int64)
    tables = [
        replace(marks, label=position[np.searchsorted(codes, marks.label)]).table(low, high, resolution)
        for low, high, marks, resolution in merged
    ]
    return tuple(labels), tuple(tables)
