"""What the saving of edits rests on, by what they select: an integrity note may doubt just that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.costs.changes import Fused
from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import WorkClass, device_work
from diagnose.replay.edits import Edit, Even, Rechunk, Recost, Remove, Replace, Times
from diagnose.trace.model import Ground


def grounds(facts: Facts, edits: Sequence[Edit]) -> frozenset[Ground]:
    """What edits of this rank rest on.

    Host time counts as far as the device is idle meanwhile, and waits as far as it is idle after them.
    """
    return frozenset(ground for edit in edits for ground in _of(facts, edit))


def _of(facts: Facts, edit: Edit) -> Iterator[Ground]:
    work = device_work(facts)
    if isinstance(edit, Even | Rechunk):
        yield from (Ground.RANKS, Ground.DEVICE_TIMES)
        return
    row = np.zeros(0, dtype=np.int64)
    if not isinstance(edit.what, Times):
        row = np.flatnonzero(np.isin(work.ids, edit.what))
        if not len(edit.what):
            return
    if len(row):
        yield Ground.DEVICE_TIMES
        if isinstance(edit, Remove | Replace) or (isinstance(edit, Recost) and isinstance(edit.change, Fused)):
            yield Ground.LAUNCHES
        if facts.rank.peers is not None and (work.work_class[row] == WorkClass.COMMUNICATION).any():
            yield Ground.RANKS
    if isinstance(edit.what, Times) or len(row) < len(np.unique(edit.what)):
        yield Ground.HOST_TIMES
        if len(work.ids):
            yield from (Ground.DEVICE_IDLE, Ground.CLOCKS)
