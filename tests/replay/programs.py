"""Training programs with a known truth: run on a simulated host and device, recorded, changed and run again.

Written from the semantics of CUDA and of PyTorch's loader, not from the replay's graph. All times are whole us. The
host does one thing at a time (the main thread sleeps while autograd's works), streams are first in, first out, and an
event or a sync only ever waits for work that was launched before it: so one pass over the host's actions suffices.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.host import host_threads
from diagnose.replay.edits import Detach, Edit, Move, Remove, Replace, Shorten, Times
from diagnose.replay.saving import Replay, Saving
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals
from tests.drawing import MAIN, Drawing

AUTOGRAD = 200
NONE = np.zeros(0, dtype=np.int64)
OF_NOTHING = {
    "shorten": Shorten(NONE, 0.0),
    "remove": Remove(NONE),
    "detach": Detach(NONE),
    "move": Move(NONE, 4),
    "replace": Replace(NONE, NONE, np.zeros((3, 0), dtype=np.int64)),
    "times": Shorten(Times(0, intervals.EMPTY), 0.0),
}


class Action:
    """What the host does next."""


@dataclass(frozen=True)
class Python(Action):
    """The host works, and nothing shows it, or an op of the name `op` does."""

    us: int
    op: str = ""


@dataclass(frozen=True)
class Op(Action):
    name: str
    inside: tuple[Action, ...]


@dataclass(frozen=True)
class Launch(Action):
    """A kernel; several: those of one CUDA graph, one after the other."""

    name: str
    us: int
    stream: int = 7
    kernels: int = 1
    recorded: bool = True


@dataclass(frozen=True)
class Sync(Action):
    """Wait until all that was launched is done: on a stream, or (None) on the device."""

    stream: int | None = 7


@dataclass(frozen=True)
class Record(Action):
    """Record an event behind all that was launched on a stream."""

    event: str
    stream: int


@dataclass(frozen=True)
class Wait(Action):
    """What a stream is given from now on waits for the last record of an event."""

    event: str
    stream: int


@dataclass(frozen=True)
class EventSync(Action):
    """The host waits for the last record of an event."""

    event: str


@dataclass(frozen=True)
class ToHost(Action):
    """A copy to pageable memory: the call returns when it is done. From pinned memory: at once."""

    us: int
    stream: int = 7
    pinned: bool = False


@dataclass(frozen=True)
class ToDevice(Action):
    """A copy of `us` from pageable memory: the call waits for the stream, then fills staging buffers for as long."""

    us: int
    size: int = 10_000_000
    stream: int = 7
    pinned: bool = False


@dataclass(frozen=True)
class Fetch(Action):
    """The next batch, made in `us` by this process, or by one of `workers`, which keep two batches each ahead."""

    us: int
    workers: int = 0


@dataclass(frozen=True)
class Free(Action):
    """cudaFree: waits for the device, then takes `us`."""

    us: int


@dataclass(frozen=True)
class Backward(Action):
    """The main thread sleeps while autograd's thread does this."""

    inside: tuple[Action, ...]


@dataclass(frozen=True)
class Machine:
    """What things cost, in us."""

    launch: int = 5  # A call that launches or records, on the host.
    latency: int = 8  # From a launching call's start to its work's start on an empty stream.
    gap: int = 1  # Between queued operations of a stream.
    queue: int = 1023  # Launches that fit into a stream's queue.
    sync: int = 6  # A sync with nothing to wait for.
    back: int = 3  # From the end of awaited work to the return of the call.
    ready: int = 400  # A fetch of a batch that workers have ready.
    hand: int = 20  # From thread to thread.


@dataclass
class Run:
    """A program being run: the clock of the host, when what was launched ends, and the trace."""

    machine: Machine = field(default_factory=Machine)
    sync_events: bool = False
    now: int = 0
    tid: int = MAIN
    draw: Drawing = field(default_factory=Drawing)
    ends: dict[int, list[int]] = field(default_factory=dict)  # By stream: when each of its launches has ended.
    not_before: dict[int, int] = field(default_factory=dict)
    events: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By event: when it is reached, its stream, and the correlation of its record."""
    batches: list[int] = field(default_factory=list)  # When each batch was handed over.
    workers_free: list[int] = field(default_factory=list)
    python: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By thread: when the host worked outside ops and calls."""
    first_start: int = -1
    bounds: list[int] = field(default_factory=list)

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            getattr(self, f"_{type(action).__name__.lower()}")(action)

    def last(self, stream: int) -> int:
        """When everything launched on a stream so far has ended."""
        return max(self.ends.get(stream, [0])[-1:], default=0)

    def everything(self) -> int:
        return max(map(self.last, self.ends), default=0)

    def _python(self, action: Python) -> None:
        begin, self.now = self.now, self.now + action.us
        if action.op:
            self.draw.op(action.op, begin, self.now, tid=self.tid)
        else:
            self.python.setdefault(self.tid, []).append((begin, self.now))

    def _op(self, action: Op) -> None:
        begin = self.now
        self.do(action.inside)
        self.draw.op(action.name, begin, self.now, tid=self.tid)

    def _put(self, stream: int, durations: Sequence[int]) -> list[tuple[int, int]]:
        """When work starts and ends whose launching call starts now."""
        runs, ends = [], self.ends.setdefault(stream, [])
        ready = self.now + self.machine.latency
        if ends:
            ready = max(ready, ends[-1] + self.machine.gap)
        ready = max(ready, self.not_before.get(stream, 0))
        for us in durations:
            runs.append((ready, ready + us))
            ready += us + self.machine.gap
        ends.append(runs[-1][1])
        self.first_start = runs[0][0] if self.first_start < 0 else self.first_start
        return runs

    def _room(self, stream: int) -> int:
        """When the newest launch of a stream fits into its queue."""
        ends, queue = self.ends[stream], self.machine.queue
        return ends[-1 - queue] if len(ends) > queue else 0

    def _launch(self, action: Launch) -> None:
        begin, runs = self.now, self._put(action.stream, [action.us] * action.kernels)
        self.now = max(self.now + self.machine.launch, self._room(action.stream))
        api = "cudaLaunchKernel" if action.kernels == 1 else "cudaGraphLaunch"
        self.draw.call(api, begin, self.now, tid=self.tid)
        for run in runs if action.recorded else ():
            self.draw.work(action.name, run, stream=action.stream, correlation=self.draw._correlation)

    def _until(self, moment: int, cost: int) -> None:
        """A call that takes at least `cost`, and returns no sooner than `back` after `moment`."""
        self.now = max(self.now + cost, moment + self.machine.back)

    def _sync(self, action: Sync) -> None:
        begin = self.now
        self._until(self.everything() if action.stream is None else self.last(action.stream), self.machine.sync)
        whole = action.stream is None
        self.draw.call("cudaDeviceSynchronize" if whole else "cudaStreamSynchronize", begin, self.now, tid=self.tid)
        stream = -1 if action.stream is None else action.stream
        self._synced("Context Sync" if whole else "Stream Sync", begin, stream)

    def _synced(self, kind: str, begin: int, stream: int, **more: int) -> None:
        if self.sync_events:
            synced(self.draw, kind, (begin, self.now), stream=stream, **more)

    def _record(self, action: Record) -> None:
        begin, self.now = self.now, self.now + self.machine.launch
        self.draw.call("cudaEventRecord", begin, self.now, tid=self.tid)
        self.events[action.event] = (self.last(action.stream), action.stream, self.draw._correlation)

    def _of(self, event: str) -> dict[str, int]:
        _, stream, correlation = self.events[event]
        return {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": correlation}

    def _wait(self, action: Wait) -> None:
        begin, self.now = self.now, self.now + self.machine.launch
        self.draw.call("cudaStreamWaitEvent", begin, self.now, tid=self.tid)
        before = self.not_before.get(action.stream, 0)
        self.not_before[action.stream] = max(before, self.events[action.event][0] + self.machine.gap)
        self._synced("Stream Wait Event", begin, action.stream, **self._of(action.event))

    def _eventsync(self, action: EventSync) -> None:
        begin = self.now
        self._until(self.events[action.event][0], self.machine.sync)
        self.draw.call("cudaEventSynchronize", begin, self.now, tid=self.tid)
        self._synced("Event Sync", begin, -1, **self._of(action.event))

    def _tohost(self, action: ToHost) -> None:
        begin, runs = self.now, self._put(action.stream, [action.us])
        self.now += self.machine.launch
        if not action.pinned:
            self.now = max(self.now, runs[0][1] + self.machine.back)
        memory = "Pinned" if action.pinned else "Pageable"
        self.draw.copy(f"DtoH (Device -> {memory})", (begin, self.now), runs[0], 4, stream=action.stream, tid=self.tid)

    def _todevice(self, action: ToDevice) -> None:
        begin, before = self.now, self.last(action.stream)
        runs = self._put(action.stream, [action.us])
        self.now = begin + self.machine.launch if action.pinned else max(begin, before) + action.us
        kind = f"HtoD ({'Pinned' if action.pinned else 'Pageable'} -> Device)"
        self.draw.copy(kind, (begin, self.now), runs[0], action.size, stream=action.stream, tid=self.tid)

    def _fetch(self, action: Fetch) -> None:
        begin, number, workers = self.now, len(self.batches), action.workers
        if not workers:
            self.now += action.us
        else:
            self.workers_free = self.workers_free or [0] * workers
            ahead = 2 * workers
            asked = self.batches[number - ahead] if number >= ahead else 0
            ready = max(asked, self.workers_free[number % workers]) + action.us
            self.workers_free[number % workers] = ready
            self.now = max(begin, ready) + self.machine.ready
        self.batches.append(self.now)
        kind = "MultiProcessing" if workers else "SingleProcess"
        self.draw.span("user_annotation", f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__", begin, self.now)

    def _free(self, action: Free) -> None:
        begin = self.now
        self.now = max(self.now, self.everything()) + action.us
        self.draw.call("cudaFree", begin, self.now, tid=self.tid)

    def _backward(self, action: Backward) -> None:
        self.tid, self.now = AUTOGRAD, self.now + self.machine.hand
        self.do(action.inside)
        self.tid, self.now = MAIN, self.now + self.machine.hand


def synced(draw: Drawing, kind: str, run: tuple[float, float], **more: int) -> None:
    """A synchronisation event of the last call."""
    draw.work(kind, run, cat="cuda_sync", cuda_sync_kind=kind, correlation=draw._correlation, **more)


def run(
    steps: Sequence[Sequence[Action]], machine: Machine | None = None, sync_events: bool = False, marked: bool = True
) -> Run:
    """A program's run, step by step; `marked`: with the profiler's step marks."""
    running = Run(machine or Machine(), sync_events)
    for number, actions in enumerate(steps):
        begin = running.now
        running.do(actions)
        if marked:
            running.draw.step(number, begin, running.now)
        running.bounds.append(max(running.everything(), 0))
    return running


def step_us(done: Run) -> float:
    """Mean time from the last device end of a step to that of the next."""
    times = [later - earlier for earlier, later in pairwise(done.bounds)]
    return sum(times) / len(times)


def ids(facts: Facts, name: str) -> IntArray:
    """All spans of this name, or whose name begins so if it ends with `*`."""
    names = facts.rank.spans["name"].astype(str)
    return np.flatnonzero(names.str.startswith(name[:-1]) if name.endswith("*") else names == name).astype(np.int64)


def python_times(done: Run, facts: Facts) -> Times:
    """The main thread's time outside ops and calls."""
    pieces = np.array(done.python[MAIN], dtype=np.int64).reshape(-1, 2) * 1000
    return Times(host_threads(facts).main, Intervals(pieces[:, 0].copy(), pieces[:, 1].copy()))


def saving(facts: Facts, *edits: Edit) -> Saving:
    """What all these edits together would save."""
    return Replay(facts).savings([edits])[0]


@dataclass(frozen=True)
class Outcome:
    """What a change of a program did, and what the replay of the recording before it says that it would do."""

    before_us: float  # Per step, as the next two.
    after_us: float
    saving: Saving

    @property
    def truth_us(self) -> float:
        return self.before_us - self.after_us

    @property
    def error(self) -> float:
        """Of the likely saving, as a share of the step."""
        return abs(self.saving.likely_ns / 1000 - self.truth_us) / self.before_us


def outcome(
    before: Sequence[Action],
    after: Sequence[Action],
    edit: Callable[[Facts], Edit | Sequence[Edit]],
    steps: int = 7,
    sync_events: bool = False,
) -> Outcome:
    """Run a step's actions before and after a change, `steps` times each, and replay the recording with the edit."""
    done, changed = run([before] * steps, sync_events=sync_events), run([after] * steps)
    facts = done.draw.facts()
    edits = edit(facts)
    return Outcome(step_us(done), step_us(changed), saving(facts, *(edits if isinstance(edits, Sequence) else [edits])))


def python(facts: Facts) -> Times:
    """The main thread from 700 to 900 us of every step."""
    at = np.arange(4) * 1_000_000
    return Times(host_threads(facts).main, intervals.of(at + 700_000, at + 900_000))
