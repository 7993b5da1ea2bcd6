"""Why was the device idle? Every gap gets one cause, from what the training threads did, and a source line if known."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import IDLE_CAUSES, TimeCause, breakdown, device_time, shared_out
from diagnose.facts.core.device import TURNAROUND_NS, device_work
from diagnose.facts.core.host import ApiCalls, api_calls, host_activities
from diagnose.facts.core.spans import sites_at
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import ApiKind

MOST = 0.5
"""An activity with a name of its own (loader, allocation, ...) is the cause if it fills this share of the delay."""

DRAIN_TOLERANCE_NS = 2_000  # A call that waits for the device is seen to return within so much of the end of the work.

_BY_NAME = (
    *(TimeCause.GARBAGE_COLLECTION, TimeCause.COMPILE, TimeCause.CHECKPOINT, TimeCause.ALLOCATION),
    *(TimeCause.LOADER, TimeCause.OTHER_RANK, TimeCause.BLOCKED, TimeCause.HOST_NOT_RECORDED),
)
_BY_LENGTH = (
    *(TimeCause.SYNC, TimeCause.HOST_COPY, TimeCause.HOST_COMPUTE, TimeCause.OPTIMIZER),
    *(TimeCause.LAUNCH, TimeCause.OPS, TimeCause.PYTHON),
)
_WITHOUT_SITE = (TimeCause.DEVICE_WAIT, TimeCause.BETWEEN_KERNELS, TimeCause.HOST_NOT_RECORDED, TimeCause.UNKNOWN)


class IdleGaps(Struct, frozen=True):
    """Idle gaps of the device in the used steps, in order. All of shape (gaps,)."""

    gaps: Intervals
    cause: npt.NDArray[np.int8]  # Position in `IDLE_CAUSES`.
    next_work: IntArray  # Span id of the device work that ends the gap, or -1.
    sites: tuple[Site | None, ...]


@fact
def idle_gaps(facts: Facts) -> IdleGaps:
    """Every gap with its cause. Raises Missing without device work or without anything recorded on the host."""
    gaps = device_time(facts).idle
    work, calls = device_work(facts), api_calls(facts)
    spans = facts.rank.spans
    at = np.searchsorted(work.start_ns, gaps.ends)
    next_work, launch = np.append(work.ids, -1)[at], np.append(work.launch, -1)[at]
    known = launch >= 0
    call_start = np.where(known, spans["start_ns"].to_numpy()[launch], gaps.starts)
    call_end = call_start + np.where(known, spans["dur_ns"].to_numpy()[launch], 0)
    late = Intervals(gaps.starts, np.clip(call_start, gaps.starts, gaps.ends))
    cause = _host_late(facts, gaps, late, _drained(calls, gaps.starts))
    delivery = gaps.ends - late.ends
    # What the host launched too late begins some 7 us after its call, as soon as it can: that is no queue.
    slow = (delivery > MOST * (gaps.ends - gaps.starts)) & (delivery > TURNAROUND_NS)
    queued = known & ((call_start <= gaps.starts) | slow)
    cause[queued] = _queued(facts, gaps, launch, call_end - late.ends)[queued]
    missing = intervals.covered(gaps, host_activities(facts)[TimeCause.HOST_NOT_RECORDED])
    unseen = missing >= MOST * (gaps.ends - gaps.starts)
    causes = (IDLE_CAUSES.index(TimeCause.HOST_NOT_RECORDED), IDLE_CAUSES.index(TimeCause.UNKNOWN))
    cause[~known] = np.where(unseen, *causes)[~known]
    return IdleGaps(gaps, cause, next_work, tuple(_sites(facts, gaps, late, cause, launch, calls)))


def _drained(calls: ApiCalls, moments: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each moment lies in a call that waits for the device, or at most DRAIN_TOLERANCE_NS after one."""
    blocked = intervals.union(Intervals(calls.start_ns[calls.blocks], calls.end_ns[calls.blocks]))
    return intervals.covered(Intervals(moments - DRAIN_TOLERANCE_NS, moments + 1), blocked) > 0


def _host_late(facts: Facts, gaps: Intervals, late: Intervals, drained: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
    """Cause by what fills `late`, the time until the launch: by name if MOST, else SYNC if `drained`, else longest."""
    activities = host_activities(facts)
    spent = {activity: intervals.covered(late, own) for activity, own in activities.items()}
    delay = late.ends - late.starts
    spent[TimeCause.PYTHON] = delay - np.sum(list(spent.values()), axis=0)
    named, rest = (np.stack([spent[cause] for cause in causes]) for causes in (_BY_NAME, _BY_LENGTH))
    named_codes, rest_codes = (np.array(list(map(IDLE_CAUSES.index, causes))) for causes in (_BY_NAME, _BY_LENGTH))
    clear = (named.max(axis=0) >= MOST * delay) & (delay > 0)
    by_length = np.where(drained, IDLE_CAUSES.index(TimeCause.SYNC), rest_codes[rest.argmax(axis=0)])
    return np.where(clear, named_codes[named.argmax(axis=0)], by_length).astype(np.int8)


def _queued(facts: Facts, gaps: Intervals, launch: IntArray, in_call_ns: IntArray) -> npt.NDArray[np.int8]:
    """The cause of each gap if its next work had been launched before it began, or early in it.

    `in_call_ns`: how long the launching call went on after the gap's start, or after its own start if that is later.
    """
    calls = api_calls(facts)
    copying = np.isin(launch, calls.ids[calls.of(ApiKind.COPY)])
    in_call = in_call_ns > MOST * (gaps.ends - gaps.starts)
    slow_call = np.where(copying, IDLE_CAUSES.index(TimeCause.HOST_COPY), IDLE_CAUSES.index(TimeCause.LAUNCH))
    short = gaps.ends - gaps.starts <= TURNAROUND_NS
    long = TimeCause.UNKNOWN if device_work(facts).on_one_stream else TimeCause.DEVICE_WAIT
    waiting = np.where(short, IDLE_CAUSES.index(TimeCause.BETWEEN_KERNELS), IDLE_CAUSES.index(long))
    return np.where(in_call & ~short, slow_call, waiting).astype(np.int8)


def _sites(
    facts: Facts, gaps: Intervals, late: Intervals, cause: npt.NDArray[np.int8], launch: IntArray, calls: ApiCalls
) -> list[Site | None]:
    """The line at a sync's blocking call, else in the middle of the host's delay; None where the cause has no line."""
    moments = (late.starts + late.ends) // 2
    blocking = np.flatnonzero(calls.blocks)
    if len(blocking):
        before = np.searchsorted(calls.start_ns[blocking], gaps.starts) - 1
        after_sync = (cause == IDLE_CAUSES.index(TimeCause.SYNC)) & (before >= 0)
        moments = np.where(after_sync, calls.start_ns[blocking[np.maximum(before, 0)]], moments)
    track = facts.rank.spans["track"].to_numpy()[np.maximum(launch, 0)].astype(np.int64)
    with_site = ~np.isin(cause, [IDLE_CAUSES.index(one) for one in _WITHOUT_SITE])
    sites: list[Site | None] = [None] * gaps.size
    for k, site in zip(np.flatnonzero(with_site), sites_at(facts, moments[with_site], track[with_site]), strict=True):
        sites[int(k)] = site
    return sites


class IdleShare(Struct, frozen=True):
    """Idle time of one cause (at one line of code), mean of the used steps."""

    cause: TimeCause
    site: Site | None
    ns: int  # Per step.
    share: float  # `ns` over the step.
    gaps: int  # In all used steps.


@fact
def idle(facts: Facts) -> tuple[IdleShare, ...]:
    """Idle time by cause and line, largest first; adds up to the breakdown's idle time. Raises Missing as idle_gaps."""
    found = idle_gaps(facts)
    groups: dict[tuple[int, Site | None], list[int]] = {}
    for cause, site, ns in zip(
        found.cause.tolist(), found.sites, (found.gaps.ends - found.gaps.starts).tolist(), strict=True
    ):
        groups.setdefault((cause, site), []).append(ns)
    ranked = sorted(groups.items(), key=lambda item: -sum(item[1]))
    busy = steps(facts).window_ns - found.gaps.total
    _, *per_step = shared_out([busy, *(sum(gaps) for _, gaps in ranked)], steps(facts).count)
    step_ns = max(breakdown(facts).step_ns, 1)
    return tuple(
        IdleShare(IDLE_CAUSES[cause], site, ns, ns / step_ns, len(gaps))
        for ((cause, site), gaps), ns in zip(ranked, per_step, strict=True)
    )
