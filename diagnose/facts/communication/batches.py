"""Which transfers does each kernel carry? What torch coalesces (batch_isend_irecv) is one kernel that tells none.

It is launched when the batch ends, so that it carries what its thread has asked for since the launch before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.communication.collectives import collective_table, told_rows
from diagnose.facts.core.base import Facts, once
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.trace import nesting
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import RECV, SEND


@dataclass(frozen=True)
class Carried:
    """Calls: each collective, and in place of a batch each of its transfers. Arrays of shape (calls,)."""

    row: IntArray
    """Of the table of collectives."""
    told: IntArray
    """Row of `Rank.collectives`; -1 where nothing was recorded."""


@once
def carried(facts: Facts) -> Carried:
    """The calls, in the order of the table. Raises Missing like it."""
    table, told = collective_table(facts), told_rows(facts)
    every = np.arange(len(told))
    batches = np.flatnonzero((told < 0) & ~table.on_host & (table.operation == "coalesced"))
    if not len(batches):
        return Carried(every, told)
    transfers, kernel = _asked_for(facts)
    row = np.full(len(facts.rank.spans), nesting.NONE, dtype=np.int64)
    row[table.ids[batches]] = batches
    batch = np.where(kernel >= 0, row[np.maximum(kernel, 0)], nesting.NONE)
    alone = np.setdiff1d(every, batch)
    rows = np.concatenate((alone, batch[batch >= 0]))
    found = np.concatenate((told[alone], transfers[batch >= 0]))
    order = np.argsort(rows, kind="stable")
    return Carried(rows[order], found[order])


def _asked_for(facts: Facts) -> tuple[IntArray, IntArray]:
    """Rows of `Rank.collectives` of what threads ask to send and receive, and the kernel launched next, or -1."""
    told, spans, work = facts.rank.collectives, facts.rank.spans, device_work(facts)
    start, track = spans["start_ns"].to_numpy(), spans["track"].to_numpy().astype(np.int64)
    asked = np.flatnonzero(told["operation"].isin([SEND, RECV]).to_numpy() & ~told.index.isin(work.ids))
    asked = asked[np.argsort(start[told.index.to_numpy()[asked]], kind="stable")]
    at = told.index.to_numpy()[asked]
    kernel = np.full(len(asked), nesting.NONE, dtype=np.int64)
    launched = np.flatnonzero((work.work_class == WorkClass.COMMUNICATION) & (work.launch >= 0))
    launched = launched[np.argsort(start[work.launch[launched]], kind="stable")]
    for thread in np.unique(track[at]).tolist():
        mine, some = np.flatnonzero(track[at] == thread), launched[track[work.launch[launched]] == thread]
        ids = np.append(work.ids[some], nesting.NONE)
        kernel[mine] = ids[np.searchsorted(start[work.launch[some]], start[at[mine]])]
    return asked, kernel
