"""How fast do large collectives transfer, without waiting? What would fewer bytes, or groups in one machine, change?"""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.communication.collectives import NO_SIZES, CollectiveTable, collective_table
from diagnose.facts.communication.messages import exposed_ns
from diagnose.facts.communication.peers import HOW, peers, waits
from diagnose.facts.communication.roles import Role, of_roles, ranks_of_a_machine, roles, share_a_machine
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import WorkClass, computed_ns, device_work
from diagnose.facts.core.inputs import Mask, peaks
from diagnose.facts.core.spans import members, used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.hardware import Peaks
from diagnose.trace.intervals import IntArray, Intervals

LARGE_BYTES = 8 << 20  # Bound by bandwidth within a machine (NCCL's tests: half of the rate is reached at 8 to 46 MiB).
PROMPT_NS = 50_000
"""All ranks leave a collective together. If the next one of the group begins so soon after, the others come to it late
by what they compute or launch in between, which is taken to be as much as on this rank (our choice)."""
START_NS = 100_000  # What a collective takes whatever it carries, at most: 15 to 99 us in nccl-tests.
LINK_SHARE = 0.7
"""A transfer goes at this share of what the links to the other devices can, at least, once it has started: fitted to
nccl-tests on 8 GPUs of 8 MiB to 16 GiB, 0.78 on A100, 0.82 on H200, 0.94 on B200, 0.70 on MI300X (Stas Bekman, Machine
Learning Engineering, network benchmarks)."""

PCIE_4_GBPS = 10.0  # Through PCIe 4 and the host's memory, at least (10 to 20 seen); PCIe 5 doubles, PCIe 3 halves it.
NODE = 8  # Devices that such links join, at most: more are joined by a network, whose rate is not recorded.
_EACH_WAY = ("allreduce",)
_ONE_WAY = ("allgather", "reducescatter", "alltoall")
_UNKNOWN_MACHINES = Missing("which ranks share a machine", "Record all ranks at once, as diagnose profile does.")


class BusRate(Struct, frozen=True):
    """Large collectives of one operation and size in the used steps, as far as their transfer is told from waiting."""

    operation: str
    group_size: int
    bytes: int  # Of one call.
    ids: IntArray  # Those that waited for hardly any rank, or whose waiting is known, in the whole recording.
    calls: int  # Of these in the used steps.
    transfer_ns: int  # Of one call, median: without waiting, or without as much as ranks that compute alike can wait.
    gbps: float  # On the wire, by nccl-tests' definition: of an all-reduce 2 (n - 1) / n times its bytes over its time.
    expected_ns: int  # What a transfer takes at most where the devices' links are used.
    compared: bool  # Waiting is known from the other ranks' recordings, not from when the collectives began.
    ns: int  # Their time in the used steps, with waiting, per step.


@fact
def bus_rates(facts: Facts) -> tuple[BusRate, ...]:
    """Those that take longest first; none if all large collectives run between machines.

    Raises Missing like the table and without the size of any collective; if there are large ones, like `peaks`, if it
    is not known where their ranks run, and if none of them is told from waiting.
    """
    table = collective_table(facts)
    mine = np.flatnonzero(~table.on_host)
    if len(mine) and (table.bytes[mine] < 0).all():
        raise NO_SIZES
    large = mine[(table.bytes[mine] >= LARGE_BYTES) & (table.group_size[mine] > 1) & (table.group_size[mine] <= NODE)]
    within = _shared(facts, table, large, True)
    if not within.any() and _shared(facts, table, large, None).any():
        raise _UNKNOWN_MACHINES
    large = large[within]
    if not len(large):
        return ()
    device = peaks(facts)
    names = table.plain[large]
    keys = np.stack([np.unique(names, return_inverse=True)[1].ravel(), table.bytes[large], table.group_size[large]])
    _, group = np.unique(keys, axis=1, return_inverse=True)
    alike = members(group.ravel(), int(group.max()) + 1)
    told = [one for some in alike if (one := _rate(facts, table, device, large[some])) is not None]
    if not told and any(name.startswith(_EACH_WAY + _ONE_WAY) for name in names):
        raise Missing("waiting inside large collectives", HOW)
    return tuple(sorted(told, key=lambda one: -one.ns))


def _shared(facts: Facts, table: CollectiveTable, rows: IntArray, wanted: bool | None) -> Mask:
    """Mask of `rows`: groups whose ranks share a machine (`wanted` True), do not (False), or may (None: unknown)."""
    keys = list(zip(table.group_ranks[rows].astype(str).tolist(), table.group_size[rows].tolist(), strict=True))
    known = {key: share_a_machine(facts, *key) for key in set(keys)}
    return np.array([known[key] is wanted for key in keys], dtype=bool)


def _rate(facts: Facts, table: CollectiveTable, device: Peaks, rows: IntArray) -> BusRate | None:
    """Bus rate of large collectives that are alike (`rows`); None if none is timed in a used step, or bytes unknown."""
    group_size, size_bytes = int(table.group_size[rows[0]]), int(table.bytes[rows[0]])
    wire = float(_wire(table, rows[:1])[0])
    transfer, compared = _transfers(facts, table, rows)
    rows, transfer = rows[transfer > 0], transfer[transfer > 0]
    inside = table.in_steps[rows]
    if not wire or not inside.any():
        return None
    median_ns = int(np.median(transfer[inside]))
    with_waits_ns = int((table.times.ends - table.times.starts)[rows[inside]].sum())
    return BusRate(
        operation=str(table.operation[rows[0]]),
        group_size=group_size,
        bytes=size_bytes,
        ids=table.ids[rows],
        calls=int(inside.sum()),
        transfer_ns=median_ns,
        gbps=wire / median_ns,
        expected_ns=round(START_NS + wire / _links_gbps(device, group_size)),
        compared=compared,
        ns=round_half_up(with_waits_ns, steps(facts).count),
    )


def _wire(table: CollectiveTable, rows: IntArray) -> npt.NDArray[np.float64]:
    """What collectives send over the slowest link in bytes, by nccl-tests' definition; 0 unknown. Shape (rows,)."""
    names = table.plain[rows].tolist()
    times = np.array([2 * name.startswith(_EACH_WAY) + name.startswith(_ONE_WAY) for name in names], dtype=np.float64)
    return times * (table.group_size[rows] - 1) / table.group_size[rows] * table.bytes[rows]


def _links_gbps(device: Peaks, ranks: int) -> float:
    """What links within a machine carry at least for a group of so many ranks, in bytes per ns.

    AMD's devices are joined in pairs, each by one of seven links.
    """
    if device.link_gbps is None:
        return PCIE_4_GBPS * 2.0 ** ((device.pcie_generation or 4) - 4)
    joined = (ranks - 1) / (NODE - 1) if device.name.startswith("MI") else 1.0
    return LINK_SHARE * device.link_gbps * joined


def _transfers(facts: Facts, table: CollectiveTable, rows: IntArray) -> tuple[IntArray, bool]:
    """(ns of each of `rows` without waiting, 0 if unknown; whether waiting is known from the other ranks)."""
    lasted = (table.times.ends - table.times.starts)[rows]
    others = optional(peers, facts)
    met = np.isin(table.ids[rows], others.met) if others is not None else np.zeros(len(rows), dtype=bool)
    if others is not None and met[table.in_steps[rows]].all():
        order = np.argsort(others.met)
        waited = np.append(others.waits_ns[order], 0)[np.searchsorted(others.met[order], table.ids[rows])]
        return np.where(met, lasted - waited, 0), True
    before = _right_before(table, rows)
    late = _done_between(facts, table.ids[before], table.ids[rows])
    return np.where(before >= 0, np.maximum(lasted - late, 0), 0), False


def _right_before(table: CollectiveTable, rows: IntArray) -> IntArray:
    """For each of `rows` the row of its group's collective that ended PROMPT_NS before it began, or later; else -1."""
    found = np.full(len(rows), -1, dtype=np.int64)
    for group in set(table.group_ranks[rows].tolist()):
        others = np.flatnonzero((table.group_ranks == group) & ~table.on_host)
        others = others[np.argsort(table.times.ends[others], kind="stable")]
        begin = table.times.starts[rows]
        last = np.append(others, -1)[np.searchsorted(table.times.ends[others], begin, side="right") - 1]
        prompt = (last >= 0) & (begin - table.times.ends[last] <= PROMPT_NS)
        found = np.where((table.group_ranks[rows] == group) & prompt, last, found)
    return found


def _done_between(facts: Facts, first: IntArray, second: IntArray) -> IntArray:
    """For each pair of operations the ns that this rank is busy in between: the longer of the compute that was launched
    between their launches (sum of durations), and of the time from the first launch to the second."""
    work = device_work(facts)
    computes = np.flatnonzero((work.work_class == WorkClass.COMPUTE) & (work.launch >= 0))
    computes = computes[np.argsort(work.launch[computes], kind="stable")]
    launched, total = work.launch[computes], np.concatenate(([0], np.cumsum((work.end_ns - work.start_ns)[computes])))
    begin, end = (work.launch[np.searchsorted(work.ids, ids)] for ids in (first, second))
    between: IntArray = total[np.searchsorted(launched, end)] - total[np.searchsorted(launched, begin)]
    starts = facts.rank.spans["start_ns"].to_numpy()
    launching = np.where((begin >= 0) & (end >= 0), starts[end] - starts[begin], 0)
    return np.maximum(np.maximum(between, launching), 0)


GRADIENTS = (Role.BUCKET, Role.GRADIENT, Role.SHARD_REDUCE)
CAST_BYTES = 12  # For each element of 4 bytes: it is read and written as 2, then read as 2 and written as 4.


class WideGradients(Struct, frozen=True):
    """Reductions of gradients on the device that go over the wire in 4 bytes an element. Numbers are per step."""

    role: Role
    ids: IntArray  # Those that compute does not hide all the time.
    calls: int
    bytes: int
    ns: int  # Sum of durations.
    exposed_ns: int  # Time of these while no compute ran.
    halved_ns: int  # Sum of durations if each took half of what is beyond START_NS, with two casts, and waited as long.
    spared_ns: int  # By how much sooner a step's last would end: none begins before the compute launched before it.
    left: float  # What is then left of the time of `ids`, as a share.
    compared: bool  # Waiting for other ranks is known.


@fact
def wide_gradients(facts: Facts) -> tuple[WideGradients, ...]:
    """By role, longest exposed first.

    Raises Missing like the table of collectives, without the type of any, and like `peaks` if there are some.
    """
    table, role_of = collective_table(facts), roles(facts)
    mine = ~table.on_host & of_roles(facts, *GRADIENTS)
    if mine.any() and (table.element_bytes[mine] <= 0).all():
        raise Missing("types of collectives", "Record with PyTorch 2.2 or newer and NCCL.")
    found = [
        _wide(facts, role, rows)
        for role in GRADIENTS
        for rows in [np.flatnonzero(mine & (role_of == role) & (table.element_bytes == 4) & (table.bytes >= 0))]
        if table.in_steps[rows].any()
    ]
    return tuple(sorted(found, key=lambda one: -one.exposed_ns))


def _wide(facts: Facts, role: Role, rows: IntArray) -> WideGradients:
    """What one role's fp32 gradient collectives take per step, and how much sooner they end with half the bytes."""
    table, used, waiting = collective_table(facts), steps(facts), waits(facts)
    inside = rows[table.in_steps[rows]]
    times = Intervals(table.times.starts[inside], table.times.ends[inside])
    dur_ns = times.ends - times.starts
    transfer = dur_ns if waiting is None else dur_ns - intervals.covered(times, waiting)
    start_ns = min(START_NS, int(transfer.min()))
    sent, cast_ns = int(table.bytes[inside].sum()), table.bytes[inside] / 4 * CAST_BYTES / peaks(facts).memory_gbps
    halved_ns = transfer - (transfer - start_ns) // 2 + np.rint(cast_ns).astype(np.int64)
    ready_ns = np.maximum(computed_ns(facts, table.ids[inside]), np.where(dur_ns > transfer, times.ends - transfer, 0))
    sooner_ns = _sooner(used_step(facts, table.ids[inside]), ready_ns, times.ends, halved_ns)
    exposed = exposed_ns(facts, table, inside)
    spared_ns = min(round_half_up(sooner_ns, used.count), exposed)
    open_ns = dur_ns - intervals.covered(times, device_work(facts).of(WorkClass.COMPUTE))
    open_share = spared_ns * used.count / max(int(dur_ns[open_ns > 0].sum()), 1)
    return WideGradients(
        role=role,
        ids=table.ids[inside[open_ns > 0]],
        calls=round_half_up(len(inside), used.count),
        bytes=round_half_up(sent, used.count),
        ns=round_half_up(int(dur_ns.sum()), used.count),
        exposed_ns=exposed,
        halved_ns=round_half_up(int((dur_ns - transfer + halved_ns).sum()), used.count),
        spared_ns=spared_ns,
        left=1.0 - min(open_share, 1.0),
        compared=waiting is not None,
    )


def _sooner(step: IntArray, begin_ns: IntArray, end_ns: IntArray, each_ns: IntArray) -> int:
    """Sum over steps of the ns by which the last ends sooner, if each takes `each_ns` once it can begin, in turn."""
    spared = 0
    for number in np.unique(step):
        mine = np.flatnonzero(step == number)
        mine = mine[np.argsort(end_ns[mine], kind="stable")]
        done = np.cumsum(each_ns[mine])
        ends = done + np.maximum.accumulate(begin_ns[mine] - (done - each_ns[mine]))
        spared += max(int(end_ns[mine[-1]] - ends[-1]), 0)
    return spared


IN_EVERY_LAYER = (Role.ACTIVATION, Role.EXCHANGE)  # What compute waits for, unlike gradients.


class Crossing(Struct, frozen=True):
    """Collectives of one role whose groups cross machines and would fit one. Arrays of shape (collectives,)."""

    role: Role
    group_size: int  # The largest of these groups.
    machine_ranks: int  # Ranks of a machine.
    ids: IntArray
    ns: int  # Time of these in the used steps, with waiting, per step.
    gbps: float  # On the wire, by nccl-tests' definition, of those that are told from waiting.
    left: float  # Share of their transfers that would be left at most over the links within a machine.
    others_ids: IntArray  # Collectives of groups within a machine that would cross machines in their place. (others,)
    others_group: IntArray  # 0, 1, 2, ... of these.
    others_ns: IntArray  # What these would take at the rate of those that cross now, by `Estimate`. Shape (3, others).


@fact
def crossings(facts: Facts) -> tuple[Crossing, ...]:
    """By role. Raises Missing like the tables, `peaks` and `bus_rates`, where there are collectives of such a role."""
    table, used_for = collective_table(facts), roles(facts)
    rows = np.flatnonzero(~table.on_host & (table.group_size > 1))
    mine = rows[of_roles(facts, *IN_EVERY_LAYER)[rows]]
    if not len(mine):
        return ()
    each = ranks_of_a_machine(facts)
    if each is None:
        raise _UNKNOWN_MACHINES
    if (table.bytes[mine] < 0).all():
        raise NO_SIZES
    fits = mine[(table.group_size[mine] <= each) & (table.bytes[mine] > 0)]
    across = fits[_shared(facts, table, fits, False)]
    within = rows[table.bytes[rows] > 0]
    within = within[_shared(facts, table, within, True)]
    by_role = {role: across[used_for[across] == role] for role in IN_EVERY_LAYER}
    return tuple(_crossing(facts, role, some, within, each) for role, some in by_role.items() if len(some))


def _crossing(facts: Facts, role: Role, rows: IntArray, intra_rows: IntArray, machine_ranks: int) -> Crossing:
    """What one role's inter-machine collectives take, and what both kinds of groups would take if they swapped."""
    table, device = collective_table(facts), peaks(facts)
    transfer_ns, _ = _transfers(facts, table, rows)
    timed = (transfer_ns > 0) & table.in_steps[rows]
    if not timed.any():
        raise Missing("waiting inside large collectives", HOW)
    wire, size = _wire(table, rows), int(table.group_size[rows].max())
    inside_ns = np.minimum(START_NS + wire / _links_gbps(device, size), transfer_ns)
    dur_ns, used = table.times.ends - table.times.starts, rows[table.in_steps[rows]]
    swapped = intra_rows[table.group_size[intra_rows] * size > machine_ranks]
    rate = float(wire[timed].sum() / transfer_ns[timed].sum())
    between_ns = START_NS + _wire(table, swapped) / max(rate, 1e-9)
    return Crossing(
        role=role,
        group_size=size,
        machine_ranks=machine_ranks,
        ids=table.ids[rows],
        ns=round_half_up(int(dur_ns[used].sum()), steps(facts).count),
        gbps=rate,
        left=float(inside_ns[timed].sum() / transfer_ns[timed].sum()),
        others_ids=table.ids[swapped],
        others_group=np.arange(len(swapped)),
        others_ns=np.stack([np.maximum(between_ns, dur_ns[swapped]).astype(np.int64)] * 3),
    )
