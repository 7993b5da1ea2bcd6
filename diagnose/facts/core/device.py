"""What the device did, and when it ran what was not recorded: neither idle nor known."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, once
from diagnose.trace import enums, intervals, kinds
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.intervals import IntArray, Intervals, distinct
from diagnose.trace.kinds import ApiKind, KernelKind, api_kind


class WorkClass(IntEnum):
    """What device work is for. In order of precedence where several run at once."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


_CLASSES = {KernelKind.COMMUNICATION: WorkClass.COMMUNICATION, KernelKind.MEMORY: WorkClass.COPY}


class DeviceWork(Struct, frozen=True):
    """Device operations in order of start. All arrays have shape (operations,)."""

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    work_class: npt.NDArray[np.int8]
    step: IntArray  # Position in `Rank.steps` of the step that launched it, or -1.
    launch: IntArray  # Span id of the call that launched it, or -1.
    track: IntArray

    @property
    def on_one_stream(self) -> bool:
        """Whether no two operations are on different streams: then none waits for another stream."""
        return bool((self.track == self.track[:1]).all())

    def of(self, *classes: WorkClass) -> Intervals:
        """Normal set of the time in which work of these classes ran; without classes, any work."""
        chosen = np.isin(self.work_class, classes) if classes else slice(None)
        return intervals.union(Intervals(self.start_ns[chosen], self.end_ns[chosen]))


@fact
def device_work(facts: Facts) -> DeviceWork:
    """All device work of the rank; empty arrays if there is none. Annotations on a device are not work."""
    rank = facts.rank
    kind = rank.spans["kind"].cat.codes.to_numpy()
    work_kinds = [enums.code(one) for one in (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)]
    ids = np.flatnonzero(np.isin(kind, work_kinds))
    start = rank.spans["start_ns"].to_numpy()[ids]
    launch = np.full(len(rank.spans), -1, dtype=np.int64)
    links = rank.links[rank.links["kind"] == LinkKind.LAUNCH.value]
    launch[links["to_id"].to_numpy()] = links["from_id"].to_numpy()
    return DeviceWork(
        ids=ids,
        start_ns=start,
        end_ns=start + rank.spans["dur_ns"].to_numpy()[ids],
        work_class=_classes(facts, ids),
        step=rank.spans["step"].to_numpy()[ids].astype(np.int64),
        launch=launch[ids],
        track=rank.spans["track"].to_numpy()[ids].astype(np.int64),
    )


def _classes(facts: Facts, ids: IntArray) -> npt.NDArray[np.int8]:
    """The WorkClass of each device span: by name for kernels, COPY for all others."""
    names = facts.rank.spans["name"].cat
    codes = names.codes.to_numpy()[ids]
    by_code = np.zeros(len(names.categories), dtype=np.int8)
    for code in np.unique(codes):
        by_code[code] = _CLASSES.get(kinds.kernel_kind(names.categories[code]), WorkClass.COMPUTE)
    is_kernel = facts.rank.spans["kind"].cat.codes.to_numpy()[ids] == enums.code(SpanKind.KERNEL)
    return np.where(is_kernel, by_code[codes], np.int8(WorkClass.COPY))


def computed_ns(facts: Facts, ids: IntArray) -> IntArray:
    """The latest end of compute work launched before each device span; 0 if there is none, or its launch is unknown."""
    work, start = device_work(facts), facts.rank.spans["start_ns"].to_numpy()
    computes = np.flatnonzero((work.work_class == WorkClass.COMPUTE) & (work.launch >= 0))
    computes = computes[np.argsort(start[work.launch[computes]], kind="stable")]
    ends = np.concatenate(([0], np.maximum.accumulate(work.end_ns[computes])))
    launch = work.launch[np.searchsorted(work.ids, ids)]
    before = np.searchsorted(start[work.launch[computes]], start[np.maximum(launch, 0)])
    return np.where(launch >= 0, ends[before], 0)


TURNAROUND_NS = 10_000
"""A queued kernel starts within 1 to 10 us of the one before (replay survey: 0.8 to 4 us back to back); what is queued
and waits longer waits for something."""

LATE_NS = 1_000_000
"""A wait that returns later than this after all recorded work has waited for other work: a host that is slow to wake
takes less (our choice; awaited work was seen to end 10 to 30 us before)."""

LAUNCHING = (ApiKind.KERNEL_LAUNCH, ApiKind.GRAPH_LAUNCH)


@fact
def unrecorded_work(facts: Facts) -> Intervals:
    """When work ran that was not recorded, as waits, queues and replays of CUDA graphs show; a normal set.

    A replay's kernels are queued at once: between them the device waits for nothing.
    """
    return intervals.merge(_in_replays(facts), _awaited(facts), _queued(facts))


def _in_replays(facts: Facts) -> Intervals:
    """When nothing was recorded within one replay of a CUDA graph for longer than TURNAROUND_NS."""
    work, gaps = device_work(facts), device_gaps(facts)
    replayed = np.isin(work.launch, _calls(facts, ApiKind.GRAPH_LAUNCH))
    following = np.searchsorted(work.start_ns, gaps.ends)
    _, first, launch = np.unique(work.launch, return_index=True, return_inverse=True)
    begun = work.start_ns[first[launch.reshape(-1)]]  # What the same call launched first.
    inside = replayed[following] & (begun[following] < gaps.starts) & (gaps.ends - gaps.starts > TURNAROUND_NS)
    return gaps.where(inside)


def _awaited(facts: Facts) -> Intervals:
    """When the host waited for the device for longer than LATE_NS, and no work was recorded until the wait's end.

    Each time begins when the recorded work is done, but not before the wait or, if that is earlier, the first launch
    whose work is not recorded. The wait has to be longer by as much as the clocks of host and device disagree.
    """
    work, spans = device_work(facts), facts.rank.spans
    waits = _calls(facts, ApiKind.STREAM_SYNC, ApiKind.DEVICE_SYNC, ApiKind.EVENT_SYNC)
    if not len(waits) or not len(work.ids):
        return intervals.EMPTY
    start = spans["start_ns"].to_numpy()
    end = start[waits] + spans["dur_ns"].to_numpy()[waits]
    launched = np.where(work.launch >= 0, start[work.launch], work.start_ns)
    skew_ns = int((launched - work.start_ns).max(initial=0))
    before = np.searchsorted(work.start_ns, end)
    done, given = (np.maximum.accumulate(np.append(0, times))[before] for times in (work.end_ns, launched))
    since = np.maximum(done, np.minimum(_first_lost(facts, given), start[waits]))
    late = end - np.maximum(done, start[waits]) > LATE_NS + skew_ns
    return intervals.union(Intervals(since[late], end[late]))


def _queued(facts: Facts) -> Intervals:
    """Device gaps in which queued work waited behind unrecorded work of its stream, each from that work's launch on.

    Streams work in order: what was launched between the work before such a gap and the work after it ran in the gap,
    not before its launch. That launch's stream is not recorded, so a gap has to begin and end with work of one.
    """
    work, spans = device_work(facts), facts.rank.spans
    timed, gaps = np.flatnonzero(work.end_ns > work.start_ns), device_gaps(facts)
    if not gaps.size:
        return intervals.EMPTY
    by_end = timed[np.argsort(work.end_ns[timed], kind="stable")]
    before = by_end[np.searchsorted(work.end_ns[by_end], gaps.starts)]
    after = timed[np.searchsorted(work.start_ns[timed], gaps.ends)]
    start = spans["start_ns"].to_numpy()
    launched = np.where(work.launch >= 0, start[work.launch], work.start_ns)
    queued = launched + np.where(work.launch >= 0, spans["dur_ns"].to_numpy()[work.launch], 0)
    first = _first_lost(facts, launched[before])
    hides = (first < launched[after]) & (work.track[before] == work.track[after])
    hides &= gaps.ends - np.maximum(gaps.starts, queued[after]) > TURNAROUND_NS
    return Intervals(np.maximum(gaps.starts, first)[hides], gaps.ends[hides])


def device_gaps(facts: Facts) -> Intervals:
    """When no work was recorded between the first and the last work of the whole recording; a normal set."""
    busy = device_work(facts).of()
    return Intervals(busy.ends[:-1], busy.starts[1:])


def _first_lost(facts: Facts, after_ns: IntArray) -> IntArray:
    """When the first launch after each time began whose work is not recorded; the greatest int if there is none."""
    lost = facts.rank.spans["start_ns"].to_numpy()[lost_launches(facts)].astype(np.int64)
    return np.append(lost, np.iinfo(np.int64).max)[np.searchsorted(lost, after_ns, side="right")]


@once
def lost_launches(facts: Facts) -> IntArray:
    """Ids of the launching calls whose work is not recorded, in order.

    Work of zero duration counts as recorded, but not if there is only one stream: what waits behind it waits for it.
    """
    work = device_work(facts)
    recorded = work.launch[(work.end_ns > work.start_ns) | (not work.on_one_stream)]
    return np.setdiff1d(_calls(facts, *LAUNCHING), recorded)


def _calls(facts: Facts, *api_kinds: ApiKind) -> IntArray:
    """Ids of the calls of one of these kinds on any thread, in order."""
    names = facts.rank.spans["name"].cat
    codes = [code for code, name in enumerate(names.categories) if api_kind(name) in api_kinds]
    return np.flatnonzero(np.isin(names.codes.to_numpy(), codes))


_FRAMEWORK = (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.LOADER, SpanKind.ANNOTATION, SpanKind.PYTHON)
"""What the framework records itself; its buffer may end while CUPTI or roctracer still record calls."""
_CALLS = (SpanKind.RUNTIME, SpanKind.DRIVER, SpanKind.SYSTEM)

ENOUGH_LAUNCHES = 20
"""So many launches in a row without an op, of a program most of whose launches have one: ops were not recorded there.
Chosen: custom kernels without an op of their own seldom come in such a row between two ops."""

MOST = 0.5
"""If ops made at least this share of the launches where ops were recorded, ops are expected elsewhere (our choice)."""


class HostRecorded(Struct, frozen=True):
    """The stretch of time from the first to the last record of the host; runtime calls may be recorded beyond it."""

    start_ns: int
    end_ns: int

    def missing_in(self, start_ns: int, end_ns: int) -> Intervals:
        """Normal set of the part of [start_ns, end_ns) that lies outside of the recorded stretch."""
        whole = Intervals(np.array([start_ns]), np.array([end_ns]))
        return intervals.subtract(whole, Intervals(np.array([self.start_ns]), np.array([self.end_ns])))


@fact
def host_recorded(facts: Facts) -> HostRecorded:
    """When the host was recorded, over all its threads. Raises Missing if it never was."""
    spans = facts.rank.spans
    kind, start = spans["kind"].cat.codes.to_numpy().astype(np.int64), spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    framework, calls = (np.isin(kind, [enums.code(one) for one in some]) for some in (_FRAMEWORK, _CALLS))
    every = framework | calls
    if not every.any():
        raise Missing("host activity", "Profile with ProfilerActivity.CPU as well.")
    first, last = int(start[every].min()), int(end[every].max())
    ops = intervals.union_of(Intervals(start, end), kind == enums.code(SpanKind.OP))
    if ops.size:
        begun, ended = int(start[framework].min()), int(end[framework].max())
        links = facts.rank.links
        launches = start[distinct(links.loc[links["kind"] == LinkKind.LAUNCH.value, "from_id"].to_numpy())]
        between = launches[(launches >= ops.starts[0]) & (launches <= ops.ends[-1])]
        if len(between) and intervals.holds(ops, between).mean() >= MOST:
            first = begun if (launches < begun).sum() >= ENOUGH_LAUNCHES else first
            last = ended if (launches > ended).sum() >= ENOUGH_LAUNCHES else last
    return HostRecorded(first, last)
