"""Groups that pass on activations or tokens in every layer, and lie across machines though they would fit one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.bandwidth import START_NS, links_gbps, transfers, wire_share
from diagnose.facts.communication.collectives import CollectiveTable, collective_table
from diagnose.facts.communication.machines import ranks_of_a_machine, share_a_machine
from diagnose.facts.communication.peers import HOW
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.matmuls import peaks
from diagnose.facts.core.steps import steps
from diagnose.trace.intervals import IntArray

IN_EVERY_LAYER = (Role.ACTIVATION, Role.EXCHANGE)
"""What compute waits for: gradients can go while the backward pass runs."""


@dataclass(frozen=True)
class Crossing:
    """Collectives of one role whose groups cross machines and would fit one. Arrays of shape (collectives,)."""

    role: Role
    group_size: int
    """The largest of these groups."""
    machine_ranks: int
    """Ranks of a machine."""
    ids: IntArray
    ns: int
    """Time of these in the used steps, with waiting, per step."""
    gbps: float
    """On the wire, by nccl-tests' definition, of those that are told from waiting."""
    left: float
    """Share of their transfers that would be left at most over the links within a machine."""
    others_ids: IntArray
    """Collectives of groups within a machine that would cross machines in their place. Shape (others,)."""
    others_group: IntArray = field(repr=False)
    """0, 1, 2, ... of these."""
    others_ns: IntArray = field(repr=False)
    """What each of these would take at the rate of those that cross now, for each `Estimate`. Shape (3, others)."""


@fact
def crossings(facts: Facts) -> tuple[Crossing, ...]:
    """By role. Raises Missing like the tables, `peaks` and `bus_rates`, where there are collectives of such a role."""
    table = collective_table(facts)
    rows = np.flatnonzero(~table.on_host & (table.group_size > 1))
    used_for = roles(facts)
    mine = rows[np.isin(used_for[rows].astype(str), [str(one) for one in IN_EVERY_LAYER])]
    if not len(mine):
        return ()
    each = ranks_of_a_machine(facts)
    if each is None:
        raise Missing("which ranks share a machine", "Record all ranks at once, as diagnose profile does.")
    if (table.bytes[mine] < 0).all():
        raise Missing("sizes of collectives", "Record with PyTorch 2.2 or newer and NCCL.")
    fits = mine[(table.group_size[mine] <= each) & (table.bytes[mine] > 0)]
    across = fits[_shared(facts, table, fits, False)]
    within = rows[(table.bytes[rows] > 0)]
    within = within[_shared(facts, table, within, True)]
    found = [_crossing(facts, table, role, across[used_for[across] == role], within, each) for role in IN_EVERY_LAYER]
    return tuple(one for one in found if one is not None)


def _shared(facts: Facts, table: CollectiveTable, rows: IntArray, wanted: bool) -> npt.NDArray[np.bool_]:
    keys = list(zip(table.group_ranks[rows].astype(str).tolist(), table.group_size[rows].tolist(), strict=True))
    known = {key: share_a_machine(facts, *key) for key in set(keys)}
    return np.array([known[key] is wanted for key in keys], dtype=bool)


def _crossing(
    facts: Facts, table: CollectiveTable, role: Role, rows: IntArray, within: IntArray, each: int
) -> Crossing | None:
    if not len(rows):
        return None
    device = peaks(facts)
    took, _ = transfers(facts, table, rows)
    told = (took > 0) & table.in_steps[rows]
    if not told.any():
        raise Missing("what of large collectives is waiting", HOW)
    wire, size = wire_share(table, rows) * table.bytes[rows], int(table.group_size[rows].max())
    inside = np.minimum(START_NS + wire / links_gbps(device, size), took)
    lasted, used = table.times.ends - table.times.starts, rows[table.in_steps[rows]]
    others = within[table.group_size[within] * size > each]
    rate = float(wire[told].sum() / took[told].sum())
    longer = START_NS + wire_share(table, others) * table.bytes[others] / max(rate, 1e-9)
    return Crossing(
        role=role,
        group_size=size,
        machine_ranks=each,
        ids=table.ids[rows],
        ns=round_half_up(int(lasted[used].sum()), steps(facts).count),
        gbps=rate,
        left=float(inside[told].sum() / took[told].sum()),
        others_ids=table.ids[others],
        others_group=np.arange(len(others)),
        others_ns=np.stack([np.maximum(longer, lasted[others]).astype(np.int64)] * 3),
    )
