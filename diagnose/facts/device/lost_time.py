"""Where does the step go while nothing is computed? By kind of communication and group, copies, and idle cause.

Each moment has one owner: exposed communication, then exposed copies, then idle time. Of a training on the CPU it is
what its main thread does besides ops.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.communication.collectives import CollectiveTable, collective_table
from diagnose.facts.communication.job_times import noise
from diagnose.facts.communication.peers import peers
from diagnose.facts.communication.roles import Role, asked_by, roles
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import IDLE_CAUSES, TimeCause, device_time, round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.host import api_calls, host_activities, host_threads
from diagnose.facts.core.idle import DRAIN_TOLERANCE_NS, IdleGaps, idle_gaps
from diagnose.facts.core.inputs import peaks
from diagnose.facts.core.spans import members, site_of_most, sites_at, sites_of
from diagnose.facts.core.steps import steps
from diagnose.facts.device.roofline import math_dtypes, matmul_ops
from diagnose.trace import intervals
from diagnose.trace.costs import DTYPES
from diagnose.trace.frames import Site
from diagnose.trace.hardware import Peaks
from diagnose.trace.intervals import IntArray, Intervals

ONE_PIECE = 0.1  # Share of a loss in one recorded step, from which on its longest piece may be start-up (our choice).

WITH_LINES = (TimeCause.PYTHON, TimeCause.OPS)  # What the host does at a known line is told by line, not by cause.

IN_CALLS = (TimeCause.LAUNCH, TimeCause.HOST_COPY)
"""Causes that last until the launching call returns; the others until it begins."""

_NONE = np.zeros(0, dtype=np.int64)


class Lost(Struct, frozen=True):
    """Time of the used steps in which nothing is computed, for one reason."""

    cause: TimeCause  # COMMUNICATION and COPY: exposed time; else why the device is idle, or what the host does.
    what: str  # Of communication the operation; of copies the direction; else "".
    role: Role | None
    group: str  # Ranks of the process group, or what the program calls it; "" unknown.
    pieces: Intervals  # Of the used steps; no other loss has them.
    ns: int  # Per step.
    share: float  # The same over the step.
    calls: int  # Collectives, copies or gaps in all used steps.
    site: Site | None  # The line at which most of it is lost.
    ids: IntArray  # Collectives and copies, in the whole recording; of SYNC the calls that wait.
    times: tuple[tuple[int, Intervals], ...]  # Host time behind it, by thread.
    awaited: tuple[tuple[int, int], ...]  # (rank, ns per step) that this one waits for, longest first; () if unknown.
    chance_ns: int = 0  # Of communication: what ranks of equal work may wait for each other, per step.

    @property
    def recurs(self) -> bool:
        """Whether no piece has ONE_PIECE of the time or more: start-up is a few long pieces."""
        return int((self.pieces.ends - self.pieces.starts).max(initial=0)) < ONE_PIECE * self.pieces.total


@fact
def lost_time(facts: Facts) -> tuple[Lost, ...]:
    """The losses, longest first. Raises Missing if no step can be measured, or nothing was recorded on the host."""
    found, taken = list[Lost](), intervals.EMPTY
    for one in (*_communication(facts), *_rest(facts)):
        left = intervals.subtract(one.pieces, taken)
        taken = intervals.merge(taken, left)
        if left.size:
            found.append(_measured(facts, replace(one, pieces=left)))
    return tuple(sorted(found, key=lambda one: -one.ns))


def together(losses: Iterable[Lost]) -> Lost | None:
    """The sum of losses of one cause, without operation, role, group and line; None without any."""
    some = list(losses)
    if not some:
        return None
    awaited: dict[int, int] = {}
    for rank, ns in (one for loss in some for one in loss.awaited):
        awaited[rank] = awaited.get(rank, 0) + ns
    return replace(
        some[0],
        what="",
        role=None,
        group="",
        pieces=intervals.merge(*(one.pieces for one in some)),
        ns=sum(one.ns for one in some),
        share=sum(one.share for one in some),
        calls=sum(one.calls for one in some),
        site=None,
        ids=np.concatenate([one.ids for one in some]),
        times=tuple(time for one in some for time in one.times),
        awaited=tuple(sorted(awaited.items(), key=lambda item: -item[1])),
    )


def _loss(cause: TimeCause, pieces: Intervals) -> Lost:
    return Lost(cause, "", None, "", pieces, 0, 0.0, pieces.size, None, _NONE, (), ())


def _measured(facts: Facts, one: Lost) -> Lost:
    used = steps(facts)
    return replace(one, ns=round_half_up(one.pieces.total, used.count), share=one.pieces.total / max(used.window_ns, 1))


def _communication(facts: Facts) -> Iterator[Lost]:
    """Exposed communication by operation, role, group and side (host or device), longest first."""
    table, time = optional(collective_table, facts), optional(device_time, facts)
    if table is None:
        return
    exposed = intervals.EMPTY if time is None else time.exposed_communication
    waiting = host_activities(facts)[TimeCause.OTHER_RANK] if table.on_host.any() else intervals.EMPTY
    on_host = waiting if time is None else intervals.intersect(waiting, time.idle)
    used, role_of = steps(facts), roles(facts)
    keys = [
        (str(operation), role.value, str(use) or str(ranks), bool(host))
        for operation, role, use, ranks, host in zip(
            table.operation, role_of, table.group_description, table.group_ranks, table.on_host, strict=True
        )
    ]
    number: dict[tuple[str, str, str, bool], int] = {}
    group = np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
    launch_of, main, found = asked_by(facts, table), host_threads(facts).main, list[Lost]()
    computes = host_activities(facts)[TimeCause.OPS] if time is None else time.compute
    own_ns = round_half_up(intervals.clip(computes, used.start_ns, used.end_ns).total, used.count)
    for (operation, role, name, host), rows in zip(number, members(group, len(number)), strict=True):
        running = intervals.clip(intervals.union_of(table.times, rows), used.start_ns, used.end_ns)
        pieces = intervals.intersect(running, on_host if host else exposed)
        inside = rows[table.in_steps[rows]]
        found.append(
            replace(
                _loss(TimeCause.COMMUNICATION, pieces),
                what=operation,
                role=Role(role),
                group=name,
                calls=len(inside),
                site=_site_of(facts, table, inside, launch_of),
                ids=table.ids[rows],
                times=((main, pieces),) if host else (),
                awaited=_awaited(facts, table.ids[rows]),
                chance_ns=round(noise(facts, on_cpu=time is None) * own_ns),
            )
        )
    yield from sorted(found, key=lambda one: -one.pieces.total)


def _site_of(facts: Facts, table: CollectiveTable, rows: IntArray, asked: IntArray) -> Site | None:
    rows = rows[asked[rows] >= 0]
    return site_of_most(sites_of(facts, asked[rows]), (table.times.ends - table.times.starts)[rows])


def _awaited(facts: Facts, ids: IntArray) -> tuple[tuple[int, int], ...]:
    """(rank, ns per step) that this rank waits for in these collectives, as the last to come; longest first."""
    others = optional(peers, facts)
    if others is None:
        return ()
    job, at = others.job, others.job.ranks.index(others.rank)
    chosen, found = np.isin(job.sequences[at].calls.ids, ids), dict[int, int]()
    for met in job.join_points:
        mine = np.flatnonzero(met.ranks == at)
        if len(mine) and chosen[met.calls[mine[0]]] and (wait := int(met.wait_ns[mine[0]])):
            last = job.ranks[int(met.ranks[met.arrived_ns.argmax()])]
            found[last] = found.get(last, 0) + wait
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return tuple((rank, round_half_up(ns, len(others.steps))) for rank, ns in ranked)


def _rest(facts: Facts) -> Iterator[Lost]:
    """Exposed copies, then idle time by cause but what is given by line (WITH_LINES), not measured yet: a moment that
    several have counts for the first. Of a training on the CPU, time of its main thread besides ops.
    """
    time = optional(device_time, facts)
    if time is None:
        yield from _on_host(facts)
        return
    work = device_work(facts)
    copies = np.flatnonzero(work.work_class == WorkClass.COPY)
    called = work.launch[copies] >= 0
    yield replace(
        _loss(TimeCause.COPY, time.exposed_copies),
        calls=int(
            (intervals.covered(Intervals(work.start_ns[copies], work.end_ns[copies]), time.exposed_copies) > 0).sum()
        ),
        ids=work.ids[copies],
        site=site_of_most(sites_of(facts, work.launch[copies[called]]), (work.end_ns - work.start_ns)[copies[called]]),
    )
    idle = idle_gaps(facts)
    for code in np.unique(idle.cause).tolist():
        cause = IDLE_CAUSES[code]
        no_line = np.array([site is None for site in idle.sites], dtype=bool)
        gaps = np.flatnonzero((idle.cause == code) & (no_line | (cause not in WITH_LINES)))
        yield _idle(facts, idle, cause, gaps)


def _idle(facts: Facts, idle: IdleGaps, cause: TimeCause, gaps: IntArray) -> Lost:
    """Idle gaps of one cause, with what ends them: blocking calls, the next device work, or late host time."""
    pieces = Intervals(idle.gaps.starts[gaps], idle.gaps.ends[gaps])
    loss = replace(
        _loss(cause, pieces), site=site_of_most([idle.sites[k] for k in gaps.tolist()], pieces.ends - pieces.starts)
    )
    if cause is TimeCause.SYNC:
        calls = api_calls(facts)
        blocking = np.flatnonzero(calls.blocks)
        around = Intervals(calls.start_ns[blocking], calls.end_ns[blocking] + DRAIN_TOLERANCE_NS)
        drains = np.searchsorted(pieces.starts, around.ends, "right") > np.searchsorted(pieces.starts, around.starts)
        return replace(loss, ids=calls.ids[blocking[drains]])
    work, spans = device_work(facts), facts.rank.spans
    next_work = idle.next_work[gaps]
    if cause is TimeCause.DEVICE_WAIT:
        return replace(loss, ids=next_work[next_work >= 0])
    launch = np.where(next_work >= 0, work.launch[np.searchsorted(work.ids, np.maximum(next_work, 0))], -1)
    known = launch >= 0
    called = spans["start_ns"].to_numpy()[launch]
    until = np.clip(called + (cause in IN_CALLS) * spans["dur_ns"].to_numpy()[launch], pieces.starts, pieces.ends)
    track = spans["track"].to_numpy()[launch].astype(np.int64)
    late = [(thread, known & (track == thread)) for thread in np.unique(track[known]).tolist()]
    return replace(loss, times=tuple((thread, intervals.of(pieces.starts[mine], until[mine])) for thread, mine in late))


def _on_host(facts: Facts) -> Iterator[Lost]:
    """Time of the main thread besides ops, by cause; of Python only what has no source line."""
    used, main = steps(facts), host_threads(facts).main
    rest = intervals.of([used.start_ns], [used.end_ns])
    for cause, times in host_activities(facts).items():
        pieces = intervals.clip(times, used.start_ns, used.end_ns)
        rest = intervals.subtract(rest, pieces)
        if cause is not TimeCause.OPS:
            yield replace(_loss(cause, pieces), times=((main, pieces),))
    sites = sites_at(facts, rest.starts, np.full(rest.size, main, dtype=np.int64))
    no_line = np.array([site is None for site in sites], dtype=bool)
    pieces = Intervals(rest.starts[no_line], rest.ends[no_line])
    yield replace(_loss(TimeCause.PYTHON, pieces), times=((main, pieces),))


KNOWN_SHARE = 0.95  # Of the FLOPs: so many have to have a known type for an MFU (our choice).


class TypeFlops(Struct, frozen=True):
    """What is multiplied in one type."""

    dtype: str  # One of `costs.DTYPES`; "" where neither a kernel's name nor its inputs tell it.
    flops: int  # Per step.
    peak_flops_per_s: float | None  # Nominal, dense, of all devices of the rank; None if it is not known.


class AchievedFlops(Struct, frozen=True):
    """FLOPs of matrix products, convolutions and attention from their shapes, mean of the recorded steps.

    All that runs is counted, also what activation checkpointing runs again.
    """

    flops: int  # Per step.
    flops_per_s: float  # Over the whole step, as recorded.
    types: tuple[TypeFlops, ...]  # Those with most FLOPs first.
    mfu: float | None
    """Model FLOPs utilisation: the time that these FLOPs take at their types' peaks, over the step. None: see `why`."""
    why_no_mfu: str  # What is not known; "" where there is an MFU.
    device: str
    devices: int
    counted_share: float  # Of the time of matmul-like kernels, with known FLOPs: below 1, all are lower bounds.
    at_most_share: float  # Of the FLOPs, upper bounds: a mask, window or missing gradient may make them less.


@fact
def achieved_flops(facts: Facts) -> AchievedFlops:
    """FLOPs and MFU. Raises Missing without device work, without shapes, or if nothing with a known cost ran.

    mfu = sum over types of (flops / peak) / step time. Of one type it is the MFU of the PaLM paper (Chowdhery et al.
    2022, appendix B), observed over peak throughput. FLOPs are those that ran: what activation checkpointing runs again
    counts, as in that paper's hardware FLOPs utilisation.
    """
    if not facts.rank.provenance.knows("shapes"):
        raise Missing("shapes", "Record with record_shapes=True.")
    table, used = matmul_ops(facts), steps(facts)
    inside, known = table.in_steps, table.in_steps & (table.flops > 0)
    if not known.any():
        raise Missing("ops with known FLOPs", "Record with record_shapes=True and a current PyTorch.")
    flops, math = table.flops[known], math_dtypes(table)[known]
    total = int(flops.sum())
    try:
        device, why = peaks(facts), ""
    except Missing as missing:
        device, why = None, missing.what
    tracks = facts.rank.spans["track"].to_numpy()[table.work]
    devices = len(np.unique(facts.rank.tracks["device"].to_numpy()[tracks]))
    found = [_of_type(code, int(flops[math == code].sum()), used.count, device, devices) for code in np.unique(math)]
    typed = [(one.flops, one.peak_flops_per_s) for one in found if one.peak_flops_per_s is not None]
    if not why and sum(ours for ours, _ in typed) * used.count < KNOWN_SHARE * total:
        why = "the data type of most FLOPs"
    best_s = sum(ours / peak for ours, peak in typed)
    return AchievedFlops(
        flops=round_half_up(total, used.count),
        flops_per_s=total / used.window_ns * 1e9,
        types=tuple(sorted(found, key=lambda one: -one.flops)),
        mfu=None if why else best_s / (used.mean_ns / 1e9),
        why_no_mfu=why,
        device=device.name if device else "",
        devices=devices,
        counted_share=float(table.dur_ns[known].sum() / table.dur_ns[inside].sum()),
        at_most_share=float(flops[~table.exact[known]].sum() / total),
    )


def _of_type(code: int, flops: int, count: int, device: Peaks | None, devices: int) -> TypeFlops:
    """FLOPs of the type at position `code` of DTYPES (-1: unknown). `flops`: in all `count` used steps."""
    dtype = DTYPES[code] if code >= 0 else ""
    rate = device.tflops(dtype) if device else None
    return TypeFlops(dtype, round_half_up(flops, count), None if rate is None else rate * 1e12 * devices)
