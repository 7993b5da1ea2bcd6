"""A discrete-event simulation of trainings: host threads, streams, loader workers, and ranks that meet in collectives.

A stream runs its work in order. A rank goes ahead until it enters a collective. There it stops until all ranks
have entered it: only then it is known when the collective starts. Kernels that run side by side do not slow each
other down.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.simulated.program import (
    DEFAULT_STREAM,
    Backward,
    Call,
    Collective,
    GraphLaunch,
    Host,
    Launch,
    Loader,
    NextBatch,
    Node,
    Program,
    Range,
    RecordEvent,
    Synchronize,
    WaitEvent,
    Work,
)

QUEUE_LIMIT = 1_024
"""Launches that may wait for the device before a launch call blocks."""
CALL_NS = 700
"""cudaEventRecord and its like: 0.4 to 1.5 us in real traces."""
SYNC_NS = 6_000
"""A synchronisation that need not wait: 6 to 11 us in real traces."""
LAUNCH_LATENCY_NS = 1_800
"""From the end of a launch call to the start on an idle device: 5 to 7 us from its start in H100 traces."""
GRAPH_LAUNCH_NS = 10_000
GRAPH_GAP_NS = 600
"""Between kernels of a graph: about half of that between queued launches."""
THREAD_SWITCH_NS = 25_000
"""From backward() to autograd's thread, and back."""
FIRST_STEP = 100
"""Number of the first simulated step: warm-up and first compilations are long over."""
SEQUENCES = 100_000
"""Sequence numbers of autograd that a step may use up; a program numbers those of each step from 1."""
COLLECTIVE_CALL_NS = 12_000
"""Launching a NCCL kernel takes 20 us under the profiler."""

MAIN, AUTOGRAD = 0, 1
CALLS = ("cuda_runtime", "cuda_driver")
PHASES = {"enumerate(DataLoader)": "loader", "Optimizer.step": "optimizer", "torch/serialization": "save"}
"""How ranges begin that are a phase of a step, and what `diagnose profile` calls it."""


@dataclass(frozen=True)
class Recorder:
    """A profiler: what it notes, and how much longer the host takes for it."""

    op_ns: int = 0
    """For each op, annotation or Python frame."""
    call_ns: int = 0
    """For each call of the runtime or the driver."""
    clock: float = 1.0
    """How many times as long all that takes: a machine whose clock is slow to read."""
    warm_up: tuple[float, ...] = ()
    """The same of its first steps, one by one."""
    ops: bool = True
    """Without them it notes calls and device work alone, as torch.profiler does of CUDA activities alone."""

    def notes(self, category: str) -> bool:
        """Whether it has events of this kind."""
        return self.ops or category in CALLS

    def cost_ns(self, category: str, step: int) -> int:
        """What an event of this kind costs in a step since it began."""
        if not self.notes(category):
            return 0
        warming = self.warm_up[step] if step < len(self.warm_up) else 1.0
        return round((self.call_ns if category in CALLS else self.op_ns) * self.clock * warming)


@dataclass(frozen=True)
class Costs:
    """What records, and how much times vary."""

    recorder: Recorder | None = None
    """From the first step on; None: none does, and no events are kept."""
    host_jitter: float = 0.08
    device_jitter: float = 0.01
    host: float = 1.0
    """Of all host times: a slower or faster CPU."""
    gap_ns: int = 1_150


FAST = Recorder(op_ns=1_500, call_ns=800)
"""Ops of a V100 ResNet trace take about 2 us more than without a profiler; CUPTI's callbacks take less than that."""
SLOW = Recorder(op_ns=2_000, call_ns=2_000, warm_up=(2.4, 1.7, 1.5, 1.2, 1.2))
"""On an H100 in a virtual machine, whose clock is slow, four trainings took 1.4 to 2.8 us longer an event, op or call.
nanoGPT, of 12 ms a step, took 39, 31, 29, 25, 25, and then 23 ms."""


@dataclass(frozen=True)
class HostEvent:
    """A range or call on a host thread."""

    category: str
    name: str
    thread: int
    start_ns: int
    end_ns: int
    op: int
    """External id: its own of an op, of the innermost op of a call; 0 if none."""
    correlation: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    sequence: int | None = None
    is_backward: bool = False


@dataclass(frozen=True)
class DeviceEvent:
    """Work on a stream."""

    work: Work
    stream: int
    start_ns: int
    end_ns: int
    op: int
    correlation: int
    graph: int = 0


@dataclass(frozen=True)
class Recording:
    """What happened on a rank."""

    rank: int
    world: int
    first_step: int
    """Its number."""
    steps: tuple[tuple[int, int], ...]
    """Start and end of each step on the main thread."""
    done_ns: tuple[int, ...]
    """When what each step launched was done, and before them what the step before launched."""
    launched: int
    """What was put onto streams in these steps."""
    phases_ns: tuple[Mapping[str, int], ...] = ()
    """Of each step, host time by phase."""
    host: tuple[HostEvent, ...] = ()
    device: tuple[DeviceEvent, ...] = ()


Entering: TypeAlias = Generator[int, int, None]
"""Yields when a rank is ready for a collective; is sent when all are."""


class Batches:
    """When loader workers have batches ready."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._ready = deque[int]()
        self._next = 0
        # Workers start one after another, so they do not finish all at once.
        self._free = [worker * loader.batch_ns // loader.workers for worker in range(loader.workers)]
        for _ in range(loader.workers * loader.prefetch):
            self.ask(0, 1.0)

    def ask(self, now_ns: int, pace: float) -> None:
        """Workers take turns."""
        worker = self._next % self._loader.workers
        self._free[worker] = max(self._free[worker], now_ns) + round(self._loader.batch_ns * pace)
        self._ready.append(self._free[worker])
        self._next += 1

    def take(self) -> int:
        """When the next one is ready."""
        return self._ready.popleft()


class Rank:
    """A process and its GPU."""

    def __init__(self, rank: int, program: Program, costs: Costs, recorded: range, seed: int) -> None:
        self._rank = rank
        self._program = program
        self._costs = costs
        self._recorded = recorded
        self._recorder = costs.recorder
        self._measuring = False
        self._number = 0
        self._random = random.Random(seed * 1_000 + rank)
        self._batches = Batches(program.loader) if program.loader else None
        self.now_ns = 0
        self._thread = MAIN
        self._free = dict[int, int]()
        self._starts = dict[int, deque[int]]()
        self._events = dict[str, int]()
        self._open = list[int]()
        self._ids = 0
        self._correlation = 0
        self._host = list[HostEvent]()
        self._device = list[DeviceEvent]()
        self.steps = list[tuple[int, int]]()
        self.done_ns = list[int]()
        self.launched = 0
        self._phases = list[dict[str, int]]()

    def fill_queue(self, each_ns: int) -> None:
        """Start with a full launch queue, as a host that is faster than its device has after a while."""
        if each_ns:
            self._starts[DEFAULT_STREAM] = deque(number * each_ns for number in range(QUEUE_LIMIT))
            self._free[DEFAULT_STREAM] = QUEUE_LIMIT * each_ns

    def run(self) -> Entering:
        """All steps, and what torch.profiler does after the last recorded one."""
        for number, body in enumerate(self._program.steps):
            self._measuring, self._number = number in self._recorded, number
            self._phases.append(dict.fromkeys((*PHASES.values(), "backward"), 0))
            start = self.now_ns
            yield from self._range(Range(f"ProfilerStep#{FIRST_STEP + number}", body, "user_annotation"))
            self.steps.append((start, self.now_ns))
            self.done_ns.append(max(self.now_ns, *self._free.values(), 0))
        self._synchronize(Synchronize())

    def recording(self, world: int) -> Recording:
        """What happened."""
        steps = tuple(self.steps[number] for number in self._recorded)
        first = self._recorded.start
        done_ns = tuple(self.done_ns[first - 1 : self._recorded.stop])
        phases_ns = tuple(self._phases[number] for number in self._recorded)
        events = tuple(self._host), tuple(self._device)
        return Recording(self._rank, world, FIRST_STEP + first, steps, done_ns, self.launched, phases_ns, *events)

    @property
    def _recording(self) -> bool:
        return self._measuring and self._recorder is not None

    def _cost_ns(self, category: str) -> int:
        return 0 if self._recorder is None else self._recorder.cost_ns(category, self._number)

    def _run(self, nodes: Sequence[Node]) -> Entering:
        for node in nodes:
            if isinstance(node, Range):
                yield from self._range(node)
            elif isinstance(node, Collective):
                yield from self._collective(node)
            elif isinstance(node, Backward):
                yield from self._backward(node)
            else:
                self._leaf(node)

    def _leaf(self, node: Node) -> None:
        if isinstance(node, Host):
            self._pass(node.dur_ns)
        elif isinstance(node, Launch):
            self._launch(node)
        elif isinstance(node, GraphLaunch):
            self._graph(node)
        elif isinstance(node, Call):
            self._call(node)
        elif isinstance(node, RecordEvent):
            self._events[node.event] = max(self._free.get(node.stream, 0), self.now_ns)
            self._call(Call("cudaEventRecord", CALL_NS))
        elif isinstance(node, WaitEvent):
            self._free[node.stream] = max(self._free.get(node.stream, 0), self._events.get(node.event, 0))
            self._call(Call("cudaStreamWaitEvent", CALL_NS))
        elif isinstance(node, Synchronize):
            self._synchronize(node)
        elif isinstance(node, NextBatch):
            self._next_batch(node)

    def _pass(self, dur_ns: float) -> None:
        pace = max(self._random.gauss(1.0, self._costs.host_jitter), 0.5)
        self.now_ns += round(dur_ns * pace * self._costs.host)

    def _range(self, node: Range) -> Entering:
        self._ids += 1
        own, start = self._ids, self.now_ns
        has_id = node.category != "python_function" and (self._recorder is None or self._recorder.ops)
        if has_id:
            self._open.append(own)
        self.now_ns += self._cost_ns(node.category)
        yield from self._run(node.body)
        if has_id:
            self._open.pop()
        phase = next((phase for begin, phase in PHASES.items() if node.name.startswith(begin)), None)
        if phase:
            self._phases[self._number][phase] += self.now_ns - start
        self._note(node.category, node.name, start, own, 0, node.args, node.sequence, node.is_backward)

    def _note(
        self,
        category: str,
        name: str,
        start: int,
        op: int,
        correlation: int = 0,
        args: Mapping[str, Any] | None = None,
        sequence: int | None = None,
        is_backward: bool = False,
    ) -> None:
        if self._recorder is not None and self._measuring and self._recorder.notes(category):
            if sequence is not None:
                sequence += self._number * SEQUENCES
            spent = (category, name, self._thread, start, self.now_ns, op, correlation, args or {})
            self._host.append(HostEvent(*spent, sequence, is_backward))

    def _backward(self, node: Backward) -> Entering:
        start = self.now_ns
        self._pass(THREAD_SWITCH_NS)
        self._thread, opened, self._open = AUTOGRAD, self._open, []
        yield from self._run(node.body)
        self._thread, self._open = MAIN, opened
        self._pass(THREAD_SWITCH_NS)
        self._phases[self._number]["backward"] += self.now_ns - start

    @property
    def _op(self) -> int:
        return self._open[-1] if self._open else 0

    def _correlate(self) -> int:
        self._correlation += 1
        return self._correlation

    def _begin_call(self) -> int:
        start = self.now_ns
        self.now_ns += self._cost_ns("cuda_runtime")
        return start

    def _call(self, node: Call) -> None:
        start = self._begin_call()
        if node.drains:
            self.now_ns = max(self.now_ns, *self._free.values(), 0)
        self._pass(node.dur_ns)
        self._note("cuda_runtime", node.name, start, self._op, self._correlate())

    def _room(self, stream: int) -> None:
        """Wait until the launch queue has room."""
        starts = self._starts.setdefault(stream, deque())
        while starts and starts[0] <= self.now_ns:
            starts.popleft()
        if len(starts) >= QUEUE_LIMIT:
            self.now_ns = starts[len(starts) - QUEUE_LIMIT]

    def _put(self, work: Work, stream: int, correlation: int, earliest_ns: int = 0, graph: int = 0) -> int:
        """Onto a stream; when it ends."""
        gap = GRAPH_GAP_NS if graph else self._costs.gap_ns
        start = max(self.now_ns + LAUNCH_LATENCY_NS, self._free.get(stream, 0) + gap, earliest_ns)
        pace = max(self._random.gauss(1.0, self._costs.device_jitter), 0.5)
        end = start + math.ceil(work.dur_ns * pace * self._program.slower)
        self._free[stream] = end
        self._starts.setdefault(stream, deque()).append(start)
        self.launched += self._measuring
        if self._recording:
            self._device.append(DeviceEvent(work, stream, start, end, self._op, correlation, graph))
        return end

    def _launch(self, node: Launch) -> None:
        start = self._begin_call()
        self._room(node.stream)
        self._pass(node.host_dur_ns)
        correlation = self._correlate()
        end = self._put(node.work, node.stream, correlation)
        if node.waits or self._program.blocking:
            self.now_ns = max(self.now_ns, end)
        category = "cuda_runtime" if node.call.startswith("cuda") else "cuda_driver"
        self._note(category, node.call, start, self._op, correlation)

    def _graph(self, node: GraphLaunch) -> None:
        start = self._begin_call()
        self._room(node.stream)
        self._pass(GRAPH_LAUNCH_NS)
        correlation = self._correlate()
        for work in node.works:
            self._put(work, node.stream, correlation, graph=1)
        self._note("cuda_runtime", "cudaGraphLaunch", start, self._op, correlation)

    def _synchronize(self, node: Synchronize) -> None:
        start = self._begin_call()
        if node.event is not None:
            name, end = "cudaEventSynchronize", self._events.get(node.event, 0)
        elif node.stream is not None:
            name, end = "cudaStreamSynchronize", self._free.get(node.stream, 0)
        else:
            name, end = "cudaDeviceSynchronize", max(self._free.values(), default=0)
        self.now_ns = max(self.now_ns, end)
        self._pass(SYNC_NS)
        self._note("cuda_runtime", name, start, self._op, self._correlate())

    def _next_batch(self, node: NextBatch) -> None:
        if self._batches is None:
            raise ValueError("a program without a loader takes no batches from one")
        self.now_ns = max(self.now_ns, self._batches.take())
        self._batches.ask(self.now_ns, max(self._random.gauss(1.0, self._costs.host_jitter), 0.5))
        self._pass(node.handing_over_ns)

    def _collective(self, node: Collective) -> Entering:
        start = self._begin_call()
        self._room(node.stream)
        self._pass(COLLECTIVE_CALL_NS)
        correlation = self._correlate()
        arrived = max(self.now_ns + LAUNCH_LATENCY_NS, self._free.get(node.stream, 0) + self._costs.gap_ns)
        together = yield arrived
        end = together + node.work.dur_ns
        self._free[node.stream] = end
        self._starts.setdefault(node.stream, deque()).append(arrived)
        if self._recording:
            self._device.append(DeviceEvent(node.work, node.stream, arrived, end, self._op, correlation))
        self._note("cuda_runtime", "cudaLaunchKernelExC", start, self._op, correlation)


def run(
    programs: Sequence[Program],
    costs: Costs,
    recorded: range,
    seed: int = 0,
    queued_ns: int = 0,
) -> tuple[Recording, ...]:
    """Run the ranks' programs side by side. `queued_ns` is as in Rank.fill_queue."""
    ranks = [Rank(number, program, costs, recorded, seed) for number, program in enumerate(programs)]
    for rank in ranks:
        rank.fill_queue(queued_ns)
    arrivals = _step([(rank.run(), None) for rank in ranks])
    while arrivals:
        if len(arrivals) < len(ranks):
            raise ValueError("a rank does not enter a collective that others wait in")
        together = max(arrived for _, arrived in arrivals)
        arrivals = _step([(running, together) for running, _ in arrivals])
    return tuple(rank.recording(len(ranks)) for rank in ranks)


def _step(waiting: Sequence[tuple[Entering, int | None]]) -> list[tuple[Entering, int]]:
    """Let all ranks go on to their next collective; those that end are left out."""
    return [(running, arrived) for running, together in waiting for arrived in _go_on(running, together)]


def _go_on(running: Entering, together: int | None) -> Iterator[int]:
    try:
        yield next(running) if together is None else running.send(together)
    except StopIteration:
        return


def step_ns(recordings: Sequence[Recording]) -> float:
    """Mean step of the slowest rank, by when its work is done."""
    return max((recording.done_ns[-1] - recording.done_ns[0]) / len(recording.steps) for recording in recordings)


def host_step_ns(recordings: Sequence[Recording]) -> float:
    """The same by when the host is through with it."""
    return max((recording.steps[-1][1] - recording.steps[0][0]) / len(recording.steps) for recording in recordings)


def busy_ns(recording: Recording) -> float:
    """Time of a step, on average, in which the device does anything."""
    busy = until = 0
    for start, end in sorted((one.start_ns, one.end_ns) for one in recording.device):
        busy, until = busy + max(end - max(start, until), 0), max(end, until)
    return busy / len(recording.steps)
