"""Which gradients are all-reduced one by one, with no bucket that collects them?"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from diagnose.facts.communication.buckets import BUCKET_BYTES, FIRST_BYTES
from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.communication.messages import exposed_ns, host_ns, issuing_ops
from diagnose.facts.communication.overlap import exposure
from diagnose.facts.communication.roles import Role, roles
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.steps import steps
from diagnose.trace.intervals import IntArray

OVERLAPPED = 0.5
"""Of what the backward pass could hide, likely hidden: DDP's buckets start when they are full (our choice)."""


@dataclass(frozen=True)
class LooseGradients:
    """All-reduces of gradients on the device that no bucket collects. Numbers are per step."""

    ids: IntArray
    run: IntArray
    """Which step each belongs to, from 0 on. Shape of `ids`."""
    joined_ns: IntArray
    """What they would take in buckets. Shape (3, runs).

    Each takes the time of the shortest whatever it carries. Low: half of that is spared for all but as many as buckets.
    Likely and high: all of it, and half and all of what the backward pass can hide of the rest, but the last bucket.
    """
    later_op_ids: IntArray
    """Host ops that start all but the first of each step."""
    calls: int
    bytes: int
    exposed_ns: int
    host_ns: int


@fact
def loose_gradients(facts: Facts) -> LooseGradients:
    """Raises Missing without device work and without collectives on the host."""
    table = collective_table(facts)
    rows = np.flatnonzero((roles(facts) == Role.GRADIENT) & ~table.on_host & (table.bytes >= 0))
    step = facts.rank.spans["step"].to_numpy()[table.ids[rows]]
    order = np.lexsort((table.times.starts[rows], step))
    rows, step = rows[order], step[order]
    _, first, run = np.unique(step, return_index=True, return_inverse=True)
    ops, op_of = issuing_ops(facts, table.ids[rows])
    later = np.setdiff1d(np.delete(op_of, first), op_of[first])
    inside, count = table.in_steps[rows], steps(facts).count
    return LooseGradients(
        ids=table.ids[rows],
        run=run.ravel().astype(np.int64),
        joined_ns=_joined(facts, rows, run.ravel(), len(first)),
        later_op_ids=ops.ids[later[later >= 0]],
        calls=round_half_up(int(inside.sum()), count),
        bytes=round_half_up(int(table.bytes[rows[inside]].sum()), count),
        exposed_ns=exposed_ns(facts, table, rows[inside]),
        host_ns=host_ns(facts, ops, op_of),
    )


def _joined(facts: Facts, rows: IntArray, run: IntArray, runs: int) -> IntArray:
    table, hideable = collective_table(facts), exposure(facts).hideable_share if runs else 0.0
    dur = (table.times.ends - table.times.starts)[rows]
    found = np.zeros((3, runs), dtype=np.int64)
    for at in range(runs):
        lasted, carried = dur[run == at], int(table.bytes[rows[run == at]].sum())
        usual = 1 + ceil(max(carried - FIRST_BYTES, 0) / BUCKET_BYTES)
        spared = max(len(lasted) - usual, 0) * int(lasted.min())
        rest = int(lasted.sum()) - spared
        hidden = hideable * (1.0 - 1.0 / usual)
        found[:, at] = rest + spared // 2, rest * (1.0 - OVERLAPPED * hidden), rest * (1.0 - hidden)
    return found
