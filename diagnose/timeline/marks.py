"""Marks of a timeline, and where each is drawn: bars in lanes of the device's streams and of the host's threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import astuple, replace

from diagnose.contracts.timeline import MARK_KINDS, Column, Lane, MarkKind, MarkTable
from diagnose.facts.core.base import Facts, once, optional
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import api_calls, host_threads
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.steps import steps
from diagnose.replay.critical_path import critical_path
from diagnose.trace import enums, intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity, ApiKind

RUN = 4  # Short marks are drawn as one up to so many resolutions, so that a long row of them keeps its texture.


class Marks(Struct, frozen=True):
    """Bars in lanes. Merging needs them `in_order`, without overlaps in a lane. All arrays of shape (marks,)."""

    lane: IntArray
    start_ns: IntArray
    dur_ns: IntArray
    label: IntArray  # Number of its name.
    kind: IntArray  # Number of its kind.
    count: IntArray  # How many operations it stands for; of several, name and kind are the longest one's.
    filled_ns: IntArray  # Time that these took; the rest of the duration lies between them.

    @classmethod
    def single(cls, lane: IntArray, start_ns: IntArray, dur_ns: IntArray, label: IntArray, kind: IntArray) -> Marks:
        """Marks of one operation each."""
        return cls(lane, start_ns, dur_ns, label, kind, count=np.ones(len(lane), dtype=np.int64), filled_ns=dur_ns)

    @classmethod
    def of(cls, table: MarkTable) -> Marks:
        """The marks of a table."""
        columns = (table.lane, table.start, table.dur, table.label, table.kind, table.count, table.filled)
        return cls(*(column.values.astype(np.int64) for column in columns))

    def table(self, start_ns: int, end_ns: int, resolution_ns: int) -> MarkTable:
        """The marks as a table of that part of the timeline."""
        return MarkTable(
            start_ns=start_ns,
            end_ns=end_ns,
            resolution_ns=resolution_ns,
            lane=Column.of(self.lane, "u1"),
            start=Column.of(self.start_ns, "f8"),
            dur=Column.of(self.dur_ns, "f8"),
            label=Column.of(self.label, "u2"),
            kind=Column.of(self.kind, "u1"),
            count=Column.of(self.count, "u4"),
            filled=Column.of(self.filled_ns, "f8"),
        )

    @classmethod
    def joined(cls, *parts: Marks) -> Marks:
        """The marks of all parts, one after the other."""
        return cls(*(np.concatenate(columns) for columns in zip(*map(astuple, parts), strict=True)))

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.lane)

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Each with its columns, as numbers of Python."""
        return zip(*(column.tolist() for column in astuple(self)), strict=True)

    def where(self, chosen: npt.NDArray[np.bool_] | IntArray) -> Marks:
        """Some of them, by mask or position."""
        return Marks(*(column[chosen] for column in astuple(self)))

    def in_order(self) -> Marks:
        """The same, by lane and start."""
        return self.where(np.lexsort((-self.dur_ns, self.start_ns, self.lane)))

    def within(self, start_ns: int, end_ns: int) -> Marks:
        """What lies in [start, end), cut off at its ends."""
        last = np.maximum(self.start_ns + self.dur_ns - 1, self.start_ns)
        chosen = self.where((self.start_ns < end_ns) & (last >= start_ns))
        start = np.maximum(chosen.start_ns, start_ns)
        end = np.minimum(chosen.start_ns + chosen.dur_ns, end_ns)
        return replace(chosen, start_ns=start, dur_ns=end - start, filled_ns=np.minimum(chosen.filled_ns, end - start))

    def merged(self, resolution_ns: int) -> Marks:
        """Marks shorter than the resolution joined to short neighbours nearer than that, if they start in one cell.

        Cells are RUN resolutions long. Longer marks stay as they are. What is left is at most 2 * RUN marks per cell
        and lane, where they did not overlap.
        """
        if self.size == 0 or resolution_ns <= 0:
            return self
        short, end = self.dur_ns < resolution_ns, self.start_ns + self.dur_ns
        cell = self.start_ns // (RUN * resolution_ns)
        joined = short[1:] & short[:-1] & (self.lane[1:] == self.lane[:-1]) & (cell[1:] == cell[:-1])
        joined &= self.start_ns[1:] - end[:-1] < resolution_ns
        first = np.flatnonzero(np.concatenate(([True], ~joined)))
        longest_ns = np.repeat(np.maximum.reduceat(self.dur_ns, first), np.diff(first, append=self.size))
        longest = np.maximum.reduceat(np.where(self.dur_ns == longest_ns, np.arange(self.size), 0), first)
        start = self.start_ns[first]
        return Marks(
            lane=self.lane[first],
            start_ns=start,
            dur_ns=np.maximum.reduceat(end, first) - start,
            label=self.label[longest],
            kind=self.kind[longest],
            count=np.add.reduceat(self.count, first),
            filled_ns=np.add.reduceat(self.filled_ns, first),
        )

    def at_most(self, count: int, window_ns: int) -> tuple[Marks, int]:
        """Merged until there are at most `count`, with the resolution that takes; 0 where all are kept.

        `count` is at least the number of lanes, and no mark starts before 0.
        """
        if self.size <= count:
            return self, 0
        resolution = max(window_ns // (4 * count), 1)
        while (found := self.merged(resolution)).size > count:
            resolution *= 2
        return found, resolution


MOST_STREAMS = 10
MOST_THREADS = 5  # Streams and threads with a lane of their own: those with most time in the window.
DEPTH = 3  # Ops inside ops inside ops are drawn; what is deeper is too narrow to be read.


@once
def window(facts: Facts) -> tuple[int, int]:
    """(start, end) of what is drawn, ns: the used steps, and before, at most as long, the launches of their work."""
    used, work = steps(facts), device_work(facts)
    inside = (work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns) & (work.launch >= 0)
    launched = facts.rank.spans["start_ns"].to_numpy()[work.launch[inside]].min(initial=used.start_ns)
    return max(int(launched), used.start_ns - used.window_ns), used.end_ns


class Lanes(Struct, frozen=True):
    """The lane of every span. Arrays of shape (spans,)."""

    lanes: tuple[Lane, ...]
    lane: IntArray  # Position in `lanes`; -1 for spans without one.
    kind: npt.NDArray[np.int8]  # Position in KINDS; -1 for spans that are not drawn themselves.
    first_of_track: dict[int, int]  # The uppermost lane of each track that has lanes.
    left_out: tuple[str, ...]


@once
def lanes(facts: Facts) -> Lanes:
    """Which spans are drawn where. Raises Missing if no step can be measured."""
    drawing = _Drawing(facts, window(facts))
    if optional(idle_gaps, facts) is not None:
        drawing.lanes.append(Lane("GPU idle", "idle"))
    if optional(critical_path, facts) is not None:
        drawing.lanes.append(Lane("critical path", "path"))
    drawing.add_streams()
    drawing.add_threads()
    return Lanes(tuple(drawing.lanes), drawing.lane, drawing.kind, drawing.first_of_track, tuple(drawing.left_out))


class _Drawing:
    """Collects lanes, and the lane and kind of each span. `shown`: the time that is drawn, (start, end) in ns."""

    def __init__(self, facts: Facts, shown: tuple[int, int]) -> None:
        spans = facts.rank.spans
        self.facts = facts
        self.lanes: list[Lane] = []
        self.left_out: list[str] = []
        self.lane: IntArray = np.full(len(spans), -1, dtype=np.int64)
        self.kind = np.full(len(spans), -1, dtype=np.int8)
        self.first_of_track: dict[int, int] = {}
        self.start = spans["start_ns"].to_numpy()
        self.end = self.start + spans["dur_ns"].to_numpy()
        self.track = spans["track"].to_numpy().astype(np.int64)
        self.inside = (self.start < shown[1]) & (self.end > shown[0])

    def add_streams(self) -> None:
        """A lane for each of the busiest streams, named by the kind of work that takes most of its time."""
        work = device_work(self.facts)
        shown = self.inside[work.ids]
        dur = np.where(shown, work.end_ns - work.start_ns, 0)
        chosen = self._busiest(work.track[shown], dur[shown], MOST_STREAMS, "streams")
        what = (MarkKind.COMPUTE, MarkKind.COMMUNICATION, MarkKind.COPY)
        number = np.array([MARK_KINDS.index(one) for one in what], dtype=np.int8)
        device, stream = (self.facts.rank.tracks[name].to_numpy() for name in ("device", "stream"))
        several = len(set(device[chosen].tolist())) > 1
        named = {WorkClass.COMPUTE: "", WorkClass.COMMUNICATION: " (communication)", WorkClass.COPY: " (copies)"}
        for track in sorted(chosen, key=lambda track: (device[track], stream[track])):
            on = work.track == track
            most = WorkClass(int(np.bincount(work.work_class[on], dur[on]).argmax()))
            name = f"GPU {device[track]} " * several + f"stream {stream[track]}{named[most]}"
            self._put(track, work.ids[on], Lane(name, "device"))
        self.kind[work.ids] = number[work.work_class]

    def add_threads(self) -> None:
        """A lane for each depth of nesting of the busiest threads, and one for their runtime calls."""
        spans = self.facts.rank.spans
        code = spans["kind"].cat.codes.to_numpy()
        kind_of = np.full(len(SpanKind) + 1, -1, dtype=np.int8)
        for span_kind in (SpanKind.OP, SpanKind.ANNOTATION, SpanKind.LOADER, SpanKind.COLLECTIVE):
            kind_of[enums.code(span_kind)] = MARK_KINDS.index(MarkKind[span_kind.name])
        kind = kind_of[code]
        kind[_is_step_mark(self.facts)] = -1
        ids = np.flatnonzero((kind >= 0) & self.inside)
        depth = _depths(self.track[ids], self.start[ids], self.end[ids])
        main = optional(host_threads, self.facts)
        calls = None if main is None else api_calls(self.facts)
        called = ids[:0] if calls is None else calls.ids[self.inside[calls.ids]]
        outer = np.concatenate((ids[depth == 0], called))
        always = () if main is None else (main.main,)
        chosen = self._busiest(self.track[outer], (self.end - self.start)[outer], MOST_THREADS, "threads", always)
        for number, track in enumerate(chosen, start=1):
            name = "main thread" if track in always else f"thread {number}"
            on_track = self.track[ids] == track
            for level in range(int(depth[on_track].max(initial=-1)) + 1):
                these = ids[on_track & (depth == level)]
                if level < DEPTH:
                    self._put(track, these, Lane(f"{name}: ops" if level == 0 else "", "host"))
                    self.kind[these] = kind[these]
                else:
                    self.lane[these] = len(self.lanes) - 1
            if calls is not None and (self.track[called] == track).any():
                self._put(track, calls.ids[calls.track == track], Lane(f"{name}: calls", "host"))
        if calls is not None:
            self.kind[calls.ids] = _CALLS[calls.kind]
            self.kind[calls.ids[calls.blocks]] = MARK_KINDS.index(MarkKind.SYNC)

    def _put(self, track: int, ids: IntArray, lane: Lane) -> None:
        """Add a lane, and put these spans of a track into it."""
        self.first_of_track.setdefault(track, len(self.lanes))
        self.lane[ids] = len(self.lanes)
        self.lanes.append(lane)

    def _busiest(self, track: IntArray, dur: IntArray, most: int, what: str, always: tuple[int, ...] = ()) -> list[int]:
        """The tracks with most time, at most `most`, those of `always` first; `left_out` notes the number of others."""
        total = np.bincount(track, weights=dur)
        order = [int(one) for one in np.argsort(-total, kind="stable") if total[one] > 0]
        order.sort(key=lambda one: one not in always)
        if len(order) > most:
            self.left_out.append(f"{len(order) - most} more {what}, none with more time than those")
        return order[:most]


def _depths(track: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """How many spans of its track each span is nested in."""
    up = intervals.parents(track, start, end)
    depth = np.zeros(len(up), dtype=np.int64)
    above = up.copy()
    while (inside := above >= 0).any():
        depth += inside
        above = np.where(inside, up[np.maximum(above, 0)], -1)
    return depth


def _is_step_mark(facts: Facts) -> npt.NDArray[np.bool_]:
    """Whether each span marks a training step. Shape (spans,)."""
    names = facts.rank.spans["name"].cat
    marks = np.array([kinds.activity(name) is Activity.STEP for name in names.categories], dtype=bool)
    return marks[names.codes.to_numpy()] if len(marks) else np.zeros(len(facts.rank.spans), dtype=bool)


_CALL_KINDS = {
    **dict.fromkeys((ApiKind.MALLOC, ApiKind.FREE, ApiKind.HOST_MALLOC, ApiKind.HOST_FREE), MarkKind.ALLOCATION),
    **dict.fromkeys((ApiKind.KERNEL_LAUNCH, ApiKind.GRAPH_LAUNCH, ApiKind.MEMSET), MarkKind.LAUNCH),
    ApiKind.COPY: MarkKind.COPY_CALL,
}
_CALLS = np.array([MARK_KINDS.index(_CALL_KINDS.get(kind, MarkKind.CALL)) for kind in ApiKind], dtype=np.int8)
