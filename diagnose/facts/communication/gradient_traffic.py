"""What do gradients take on the wire, in which type, and what would fewer bytes take?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.messages import exposed_ns
from diagnose.facts.communication.peers import waits
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.facts.core.matmuls import peaks
from diagnose.facts.core.spans import used_step
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.intervals import IntArray, Intervals

GRADIENTS = (Role.BUCKET, Role.GRADIENT, Role.SHARD_REDUCE)

START_NS = 100_000
"""What a collective takes whatever it carries, at most: 15 to 99 us in nccl-tests, and the shortest of a trace."""

CAST_BYTES = 12
"""For each element of 4 bytes: it is read and written as 2, then read as 2 and written as 4."""


@dataclass(frozen=True)
class WideGradients:
    """Reductions of gradients on the device that go over the wire in 4 bytes an element. Numbers are per step."""

    role: Role
    ids: IntArray
    """Those that compute does not hide all the time."""
    calls: int
    bytes: int
    ns: int
    """Sum of durations."""
    exposed_ns: int
    """Time of these while no compute ran."""
    halved_ns: int
    """Sum of durations if each took half of what it takes beyond START_NS, with two casts, and waited as long."""
    spared_ns: int
    """By how much the last of them would end sooner: none begins before what was launched before it has computed."""
    left: float
    """What is then left of the time of `ids`, as a share."""
    compared: bool
    """Waiting for other ranks is known."""


@fact
def wide_gradients(facts: Facts) -> tuple[WideGradients, ...]:
    """By role, longest exposed first.

    Raises Missing like the table of collectives, without the type of any, and like `peaks` if there are some.
    """
    table, role_of = collective_table(facts), roles(facts)
    mine = ~table.on_host & np.isin(role_of.astype(str), [str(gradient) for gradient in GRADIENTS])
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
    table, used, known = collective_table(facts), steps(facts), waits(facts)
    inside = rows[table.in_steps[rows]]
    times = Intervals(table.times.starts[inside], table.times.ends[inside])
    lasted = times.ends - times.starts
    transfer = lasted if known is None else lasted - intervals.covered(times, known)
    start_ns = min(START_NS, int(transfer.min()))
    carried, cast_ns = int(table.bytes[inside].sum()), table.bytes[inside] / 4 * CAST_BYTES / peaks(facts).memory_gbps
    each_ns = transfer - (transfer - start_ns) // 2 + np.rint(cast_ns).astype(np.int64)
    begin_ns = np.maximum(_computed_ns(facts, table.ids[inside]), np.where(lasted > transfer, times.ends - transfer, 0))
    spared = _sooner(used_step(facts, table.ids[inside]), begin_ns, times.ends, each_ns)
    exposed = exposed_ns(facts, table, inside)
    spared_ns = min(round_half_up(spared, used.count), exposed)
    open_ns = lasted - intervals.covered(times, device_work(facts).of(WorkClass.COMPUTE))
    open_share = spared_ns * used.count / max(int(lasted[open_ns > 0].sum()), 1)
    return WideGradients(
        role=role,
        ids=table.ids[inside[open_ns > 0]],
        calls=round_half_up(len(inside), used.count),
        bytes=round_half_up(carried, used.count),
        ns=round_half_up(int(lasted.sum()), used.count),
        exposed_ns=exposed,
        halved_ns=round_half_up(int((lasted - transfer + each_ns).sum()), used.count),
        spared_ns=spared_ns,
        left=1.0 - min(open_share, 1.0),
        compared=known is not None,
    )


def _computed_ns(facts: Facts, ids: IntArray) -> IntArray:
    """When the last of what was launched before each of these to compute has done so; 0 where launches are unknown."""
    work, spans = device_work(facts), facts.rank.spans
    computes = np.flatnonzero((work.work_class == WorkClass.COMPUTE) & (work.launch >= 0))
    start = spans["start_ns"].to_numpy()
    computes = computes[np.argsort(start[work.launch[computes]], kind="stable")]
    ends = np.concatenate(([0], np.maximum.accumulate(work.end_ns[computes])))
    launch = work.launch[np.searchsorted(work.ids, ids)]
    before = np.searchsorted(start[work.launch[computes]], start[np.maximum(launch, 0)])
    return np.where(launch >= 0, ends[before], 0)


def _sooner(step: IntArray, begin_ns: IntArray, end_ns: IntArray, each_ns: IntArray) -> int:
    """By how much the last of each step ends sooner if they follow each other as soon as they can. Sum of steps."""
    spared = 0
    for number in np.unique(step):
        mine = np.flatnonzero(step == number)
        mine = mine[np.argsort(end_ns[mine], kind="stable")]
        done = np.cumsum(each_ns[mine])
        ends = done + np.maximum.accumulate(begin_ns[mine] - (done - each_ns[mine]))
        spared += max(int(end_ns[mine[-1]] - ends[-1]), 0)
    return spared
