"""Where each span is drawn: lanes of the device's streams and of the host's threads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.contracts.timeline import MARK_KINDS, Lane, MarkKind
from diagnose.facts.core.base import Facts, once, optional
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import HostThreads, api_calls, host_threads
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.steps import steps
from diagnose.replay.critical_path import critical_path
from diagnose.trace import enums, kinds, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity, ApiKind

MOST_STREAMS = 10
MOST_THREADS = 5  # Streams and threads with a lane of their own: those with most time in the window.
DEPTH = 3  # Ops inside ops inside ops are drawn; what is deeper is too narrow to be read.


@once
def window(facts: Facts) -> tuple[int, int]:
    """What is drawn: the used steps, and what the host did before to launch them, at most as long again."""
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
        work = device_work(self.facts)
        shown = self.inside[work.ids]
        dur = np.where(shown, work.end_ns - work.start_ns, 0)
        chosen = self._busiest(work.track[shown], dur[shown], MOST_STREAMS, "streams")
        what = (MarkKind.COMPUTE, MarkKind.COMMUNICATION, MarkKind.COPY)
        number = np.array([MARK_KINDS.index(one) for one in what], dtype=np.int8)
        tracks = self.facts.rank.tracks
        several = len({int(tracks["device"].iloc[track]) for track in chosen}) > 1
        for track in sorted(chosen, key=lambda one: (tracks["device"].iloc[one], tracks["stream"].iloc[one])):
            mine = work.ids[work.track == track]
            most = WorkClass(int(np.bincount(work.work_class[work.track == track], dur[work.track == track]).argmax()))
            device = f"GPU {tracks['device'].iloc[track]} " * several
            name = f"{device}stream {tracks['stream'].iloc[track]}"
            named = {WorkClass.COMPUTE: "", WorkClass.COMMUNICATION: " (communication)", WorkClass.COPY: " (copies)"}
            self._put(track, mine, Lane(name + named[most], "device"))
        self.kind[work.ids] = number[work.work_class]

    def add_threads(self) -> None:
        spans = self.facts.rank.spans
        code = spans["kind"].cat.codes.to_numpy()
        wanted = {
            SpanKind.OP: MarkKind.OP,
            SpanKind.ANNOTATION: MarkKind.ANNOTATION,
            SpanKind.LOADER: MarkKind.LOADER,
            SpanKind.COLLECTIVE: MarkKind.COLLECTIVE,
        }
        kind_of = np.full(len(SpanKind) + 1, -1, dtype=np.int8)
        for span_kind, mark in wanted.items():
            kind_of[enums.code(span_kind)] = MARK_KINDS.index(mark)
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
        for place, track in enumerate(_main_first(chosen, main)):
            name = "main thread" if main is not None and track == main.main else f"thread {place + 1}"
            mine = self.track[ids] == track
            for level in range(int(depth[mine].max(initial=-1)) + 1):
                these = ids[mine & (depth == level)]
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
        self.first_of_track.setdefault(track, len(self.lanes))
        self.lane[ids] = len(self.lanes)
        self.lanes.append(lane)

    def _busiest(self, track: IntArray, dur: IntArray, most: int, what: str, always: tuple[int, ...] = ()) -> list[int]:
        """The tracks with most time, `most` of them; those of `always` that have any are among them."""
        total = np.bincount(track, weights=dur) if len(track) else np.zeros(0)
        order = [int(one) for one in np.argsort(-total, kind="stable") if total[one] > 0]
        order.sort(key=lambda one: one not in always)
        if len(order) > most:
            self.left_out.append(f"{len(order) - most} more {what}, none with more time than those")
        return order[:most]


def _depths(track: IntArray, start: IntArray, end: IntArray) -> IntArray:
    up = nesting.parents(track, start, end)
    depth = np.zeros(len(up), dtype=np.int64)
    above = up.copy()
    while (inside := above >= 0).any():
        depth += inside
        above = np.where(inside, up[np.maximum(above, 0)], -1)
    return depth


def _is_step_mark(facts: Facts) -> npt.NDArray[np.bool_]:
    names = facts.rank.spans["name"].cat
    marks = np.array([kinds.activity(name) is Activity.STEP for name in names.categories], dtype=bool)
    return marks[names.codes.to_numpy()] if len(marks) else np.zeros(len(facts.rank.spans), dtype=bool)


def _main_first(tracks: list[int], threads: HostThreads | None) -> list[int]:
    return tracks if threads is None else sorted(tracks, key=lambda track: track != threads.main)


_ALLOCATING = (ApiKind.MALLOC, ApiKind.FREE, ApiKind.HOST_MALLOC, ApiKind.HOST_FREE)
_LAUNCHING = (ApiKind.KERNEL_LAUNCH, ApiKind.GRAPH_LAUNCH, ApiKind.MEMSET)


def _call_kind(kind: ApiKind) -> MarkKind:
    if kind in _ALLOCATING:
        return MarkKind.ALLOCATION
    if kind in _LAUNCHING:
        return MarkKind.LAUNCH
    return MarkKind.COPY_CALL if kind is ApiKind.COPY else MarkKind.CALL


_CALLS = np.array([MARK_KINDS.index(_call_kind(kind)) for kind in ApiKind], dtype=np.int8)
