"""A rank: its host threads, its streams, and how it meets others.

The host puts work onto streams, each of which runs its own in order. A collective ends some transfer time after the
last rank's kernel has begun; what is sent and received, after both sides' have. Work of one communicator runs in order
whatever its streams are. Kernels that run side by side do not slow each other down.
"""

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulated_jobs.layout import Group, Layout
from benchmarks.simulated_jobs.moments import BEGIN, Moment, Moments
from benchmarks.simulated_jobs.recording import AUTOGRAD, DEFAULT_STREAM, MAIN, DeviceEvent, HostEvent, Recording, Work

QUEUE_LIMIT = 1_024  # Launches that may wait for the device before a launch call blocks.
CALL_NS = 700
LAUNCH_NS, COLLECTIVE_CALL_NS = 4_000, 9_000
SYNC_NS = 6_000
LAUNCH_LATENCY_NS = 1_800
THREAD_SWITCH_NS = 25_000
GAP_NS = 1_150  # Between two queued kernels of a stream of an A100.
LEAVING_NS = 3_000  # Ranks of one host leave a collective so close together: within 5 us on real ones.
KIND = {
    # torch's op, NCCL's annotation, its kernel.
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce", "AllReduce_Sum_{0}_RING_LL"),
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base", "AllGather_RING_LL"),
    "_reduce_scatter_base": (
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum_{0}_RING_LL",
    ),
    "all_to_allv": ("c10d::alltoall_base_", "nccl:all_to_all", "SendRecv"),
}
TYPES = {"Float": (4, "f32"), "BFloat16": (2, "bf16"), "Long": (8, "i64")}


@dataclass(frozen=True)
class Costs:
    """What recording adds for each op and each call, and how much times vary."""

    op_ns: int = 0
    call_ns: int = 0
    host_jitter: float = 0.05
    device_jitter: float = 0.01


RECORDED = Costs(op_ns=1_500, call_ns=800)
"""Ops of a V100 ResNet trace take about 2 us more than without a profiler; CUPTI's callbacks take less than that."""


@dataclass
class World:
    """What the ranks share."""

    layout: Layout
    costs: Costs
    recorded: range
    numbers_kept: bool = True  # Whether `Seq` is recorded (torch 2.12).
    coalesces_all: bool = False
    """Whether sends or receives alone are one kernel as well if they are asked for in a batch (torch 2.11)."""
    moments: Moments = field(default_factory=Moments)
    meetings: dict[tuple[object, ...], int] = field(default_factory=dict)

    def meet(self, key: tuple[object, ...], arrived: Moment) -> int:
        """The node when all who come have come."""
        if key not in self.meetings:
            self.meetings[key] = self.moments.open()
        self.moments.wait_for(self.meetings[key], arrived)
        return self.meetings[key]


@dataclass(frozen=True)
class Sent:
    """A send or a recv."""

    sends: bool
    peer: int
    group: Group
    size: int


@dataclass
class _Noted:
    """An event of the host or the device, with moments rather than times."""

    made: HostEvent | DeviceEvent
    start: Moment
    end: Moment


class Rank:
    """A process and its GPU."""

    def __init__(self, number: int, world: World, slower: float = 1.0, host: float = 1.0) -> None:
        self.number, self.world = number, world
        self._slower, self._host = slower, host
        self._random = random.Random(number)
        self._now = BEGIN
        self._thread = MAIN
        self._free = dict[int, Moment]()
        self._starts = dict[int, deque[Moment]]()
        self._communicators = dict[str, Moment]()
        self._counts = dict[tuple[object, ...], int]()
        self._open = list[int]()
        self._ids = self._correlation = self._sequence = 0
        self._recording = False
        self._noted = list[_Noted]()
        self._steps = list[tuple[Moment, Moment]]()
        self._done = list[Moment]()

    # The host

    def host(self, dur_ns: float) -> None:
        """Time of the host."""
        pace = max(self._random.gauss(1.0, self.world.costs.host_jitter), 0.5)
        self._now = self._now.later(round(dur_ns * pace * self._host))

    @contextmanager
    def step(self, number: int, starts_late_ns: float = 0.0) -> Iterator[None]:
        """One step, after what starting the profiler takes."""
        self._recording = number in self.world.recorded
        if number == self.world.recorded.start:
            self.host(starts_late_ns)
        start = self._now
        with self.range(f"ProfilerStep#{100 + number}"):
            yield
        self._steps.append((start, self._now))
        self._done.append(self._latest(self._now, *self._free.values()))

    @contextmanager
    def range(
        self,
        name: str,
        category: str = "user_annotation",
        args: Mapping[str, Any] | None = None,
        sequence: int | None = None,
        backward: bool = False,
    ) -> Iterator[None]:
        """An annotation or an op."""
        self._ids += 1
        own, start = self._ids, self._now
        self._open.append(own)
        self._now = self._now.later(self.world.costs.op_ns)
        yield
        self._open.pop()
        self._note(category, name, start, own, 0, args, sequence, backward)

    @contextmanager
    def op(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        own_ns: int = 1_000,
        sequence: int | None = None,
        backward: bool = False,
    ) -> Iterator[None]:
        """An op of the dispatcher."""
        with self.range(name, "cpu_op", args, sequence, backward):
            self.host(own_ns)
            yield

    def next_sequence(self) -> int:
        """Of autograd."""
        self._sequence += 1
        return self._sequence

    @contextmanager
    def autograd(self) -> Iterator[None]:
        """What autograd's thread runs while the main thread waits."""
        self.host(THREAD_SWITCH_NS)
        self._thread, opened, self._open = AUTOGRAD, self._open, []
        yield
        self._thread, self._open = MAIN, opened
        self.host(THREAD_SWITCH_NS)

    def _note(
        self,
        category: str,
        name: str,
        start: Moment,
        op: int,
        correlation: int = 0,
        args: Mapping[str, Any] | None = None,
        sequence: int | None = None,
        backward: bool = False,
    ) -> None:
        if self._recording:
            made = HostEvent(category, name, self._thread, 0, 0, op, correlation, args or {}, sequence, backward)
            self._noted.append(_Noted(made, start, self._now))

    @contextmanager
    def _call(self, name: str, dur_ns: float) -> Iterator[int]:
        start = self._now
        self._now = self._now.later(self.world.costs.call_ns)
        self.host(dur_ns)
        self._correlation += 1
        correlation = self._correlation
        yield correlation
        self._note("cuda_runtime", name, start, self._open[-1] if self._open else 0, correlation)

    def _latest(self, *some: Moment) -> Moment:
        return self.world.moments.latest(*some)

    # The device

    def launch(self, work: Work, stream: int = DEFAULT_STREAM) -> None:
        """Put work onto a stream."""
        name = "cudaLaunchKernel" if work.category == "kernel" else "cudaMemcpyAsync"
        self._room(stream)
        with self._call(name, LAUNCH_NS) as correlation:
            start = self._ready(stream)
            pace = max(self._random.gauss(1.0, self.world.costs.device_jitter), 0.5)
            end = start.later(round(work.dur_ns * pace * self._slower))
            self._put(work, stream, start, end, correlation)

    def _ready(self, stream: int) -> Moment:
        queued = self._now.later(LAUNCH_LATENCY_NS)
        return self._latest(queued, self._free[stream].later(GAP_NS)) if stream in self._free else queued

    def _put(self, work: Work, stream: int, start: Moment, end: Moment, correlation: int) -> None:
        self._free[stream] = end
        self._starts.setdefault(stream, deque()).append(start)
        if self._recording:
            made = DeviceEvent(work, stream, 0, 0, self._open[-1] if self._open else 0, correlation)
            self._noted.append(_Noted(made, start, end))

    def _room(self, stream: int) -> None:
        starts = self._starts.setdefault(stream, deque(maxlen=QUEUE_LIMIT))
        if len(starts) == QUEUE_LIMIT:
            self._now = self._latest(self._now, starts[0])

    def record(self, stream: int = DEFAULT_STREAM) -> Moment:
        """An event: when what is on the stream is done."""
        with self._call("cudaEventRecord", CALL_NS):
            return self._latest(self._now, self._free.get(stream, self._now))

    def wait(self, event: Moment, stream: int = DEFAULT_STREAM) -> None:
        """What is put onto the stream later waits for the event."""
        with self._call("cudaStreamWaitEvent", CALL_NS):
            self._free[stream] = self._latest(self._free.get(stream, event), event)

    def synchronize(self, stream: int = DEFAULT_STREAM) -> None:
        """The host waits for a stream."""
        with self._call("cudaStreamSynchronize", 0):
            self._now = self._latest(self._now, self._free.get(stream, self._now)).later(SYNC_NS)

    def item(self, why: str = "aten::_local_scalar_dense") -> None:
        """`.item()`."""
        with self.op("aten::item"), self.op(why, own_ns=4_500):
            self.launch(Work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1_300, size=4))
            self.synchronize()

    # Others

    def collective(
        self,
        kind: str,
        group: Group,
        size: int,
        dtype: str,
        stream: int,
        asks: str = "",
        splits: tuple[Sequence[int], Sequence[int], int] | None = None,
        from_current: bool = True,
    ) -> Moment:
        """Meet all of a group; the event of its end.

        `size`: bytes as nccl-tests count them. `splits`: elements to and from each, and the most that any rank moves.
        It waits for what was put onto the default stream before, unless `stream` is the caller's current one.
        """
        op, note, kernel = KIND[kind]
        width, short = TYPES[dtype]
        args = self._told(group, kind, dtype, size // width)
        if splits is not None:
            args |= {"In split size": str(list(splits[0])), "Out split size": str(list(splits[1]))}
            args |= {"In msg nelems": sum(splits[0]), "Out msg nelems": sum(splits[1])}
        turn = self._turn(("collective", group.name))
        args |= {"Seq": turn} if self.world.numbers_kept else {}
        most = splits[2] * width if splits else size
        taken = self.world.layout.collective_ns("all_to_all" if splits else kind, group.ranks, most)
        work = Work("kernel", _kernel(kernel.format(short)), 0, (24, 1, 1), (544, 1, 1), 96, args=args)
        with self.op(asks or op), self.op("record_param_comms", args, own_ns=3_000):
            if from_current and stream != DEFAULT_STREAM:
                self.wait(self.record(), stream)
            with self.range(note), self._call("cudaLaunchKernelExC", COLLECTIVE_CALL_NS) as correlation:
                start = self._entering(stream, group.name)
                met = self.world.meet(("collective", group.name, turn), start)
                self._communicate(work, stream, group.name, start, Moment(met, taken), correlation)
            return self.record(stream)

    def _entering(self, stream: int, communicator: str) -> Moment:
        ready = self._ready(stream)
        before = self._communicators.get(communicator)
        return self._latest(ready, before.later(GAP_NS)) if before else ready

    def _communicate(
        self, work: Work, stream: int, communicator: str, start: Moment, over: Moment, correlation: int
    ) -> None:
        end = over.later(self._random.randrange(LEAVING_NS))
        self._communicators[communicator] = end
        self._put(work, stream, start, end, correlation)

    def _told(self, group: Group, kind: str, dtype: str, elements: int) -> dict[str, Any]:
        members = len(group.ranks)
        shown = ", ".join(map(str, group.ranks[:30])) + (", ..." if members > 30 else "")
        return {
            "Collective name": kind,
            "dtype": dtype,
            "In msg nelems": elements // (members if kind == "_allgather_base" else 1),
            "Out msg nelems": elements // (members if kind == "_reduce_scatter_base" else 1),
            "Group size": members,
            "Process Group Name": group.name,
            "Process Group Description": group.use,
            "Process Group Ranks": f"[{shown}]",
        }

    def _turn(self, key: tuple[object, ...]) -> int:
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]

    def batch(self, some: Sequence[Sent], stream: int) -> Moment | None:
        """`batch_isend_irecv`: one kernel for all where they are coalesced; the event of the end of all."""
        if not some:
            return None
        if not (self.world.coalesces_all or len({one.sends for one in some}) > 1):
            # Each pair of ranks has a communicator and a stream of its own.
            ends = [self._alone(one, stream + 1 + one.peer) for one in some]
            return self._latest(*ends)
        number = self._turn(("p2p", some[0].group.name))
        for one in some:
            with self._asking(one), self.op("record_param_comms", self._sending(one, number), own_ns=3_000):
                pass
        self.wait(self.record(), stream)
        with self.range("nccl:coalesced"), self._call("cudaLaunchKernelExC", COLLECTIVE_CALL_NS) as correlation:
            start = self._entering(stream, some[0].group.name)
            over = self._latest(*(self._handed_over(one, start) for one in some))
            work = Work("kernel", _kernel("SendRecv"), 0, (2, 1, 1), (544, 1, 1), 96)
            self._communicate(work, stream, some[0].group.name, start, over, correlation)
        return self.record(stream)

    @contextmanager
    def _asking(self, one: Sent) -> Iterator[None]:
        with self.op("c10d::send" if one.sends else "c10d::recv_"):
            yield

    def _sending(self, one: Sent, number: int) -> dict[str, Any]:
        args = self._told(one.group, "send" if one.sends else "recv", "BFloat16", one.size // 2)
        args |= {"Dst Rank" if one.sends else "Src Rank": one.peer}
        return {**args, "Seq": number} if self.world.numbers_kept else args

    def _alone(self, one: Sent, stream: int) -> Moment:
        pair = f"{min(self.number, one.peer)}:{max(self.number, one.peer)}"
        args = self._sending(one, self._turn(("p2p", pair)))
        towards = f"{self.number}->{one.peer}" if one.sends else f"{self.number}<-{one.peer}"
        with self._asking(one), self.op("record_param_comms", args, own_ns=3_000):
            self.wait(self.record(), stream)
            with (
                self.range(f"nccl:{'send' if one.sends else 'recv'} {towards}"),
                self._call("cudaLaunchKernelExC", COLLECTIVE_CALL_NS) as correlation,
            ):
                start = self._entering(stream, pair)
                work = Work("kernel", _kernel("SendRecv"), 0, (2, 1, 1), (544, 1, 1), 96, args=args)
                self._communicate(work, stream, pair, start, self._handed_over(one, start), correlation)
            return self.record(stream)

    def _handed_over(self, one: Sent, start: Moment) -> Moment:
        ends = (self.number, one.peer) if one.sends else (one.peer, self.number)
        number = self._turn(("pair", one.sends, *ends))
        met = self.world.meet(("pair", *ends, number), start)
        return Moment(met, self.world.layout.transfer_ns(*ends, one.size))

    # What is left of it

    def recording(self, times: Sequence[int]) -> Recording:
        """With the times of all nodes."""

        def at(moment: Moment) -> int:
            return times[moment.node] + moment.after_ns

        host, device = list[HostEvent](), list[DeviceEvent]()
        for one in self._noted:
            made, start, end = one.made, at(one.start), at(one.end)
            if isinstance(made, HostEvent):
                kept = (made.op, made.correlation, made.args, made.sequence, made.is_backward)
                host.append(HostEvent(made.category, made.name, made.thread, start, end, *kept))
            else:
                device.append(DeviceEvent(made.work, made.stream, start, end, made.op, made.correlation))
        kept_steps = self.world.recorded
        steps = tuple((at(self._steps[k][0]), at(self._steps[k][1])) for k in kept_steps)
        done = tuple(at(self._done[k]) for k in range(kept_steps.start - 1, kept_steps.stop))
        world = self.world.layout.world
        return Recording(self.number, world, steps, done, tuple(host), tuple(device))


def _kernel(name: str) -> str:
    return f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"
