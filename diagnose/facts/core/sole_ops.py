"""Which ops start nothing but certain work, so that they go if it goes?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import enclosing_op
from diagnose.facts.core.spans import host_spans
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, distinct


def sole_ops(facts: Facts, calls: IntArray) -> IntArray:
    """The outermost op around each call in which no device work but that of these calls is started, or -1."""
    ops, launch = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE), device_work(facts).launch
    up = np.append(ops.parents, nesting.NONE)
    other = np.ones(len(facts.rank.spans), dtype=bool)
    other[calls[calls >= 0]] = False
    launch = distinct(launch[launch >= 0])
    others = enclosing_op(facts, launch[other[launch]])
    mixed = np.append(np.zeros(len(ops.ids), dtype=bool), True)
    at = np.searchsorted(ops.ids, distinct(others[others >= 0]))
    while len(at := at[~mixed[at]]):
        mixed[at] = True
        at = distinct(up[at])
    own = np.where(calls >= 0, enclosing_op(facts, np.maximum(calls, 0)), nesting.NONE)
    at = np.where(own >= 0, np.searchsorted(ops.ids, own), nesting.NONE)
    at[mixed[at]] = nesting.NONE
    while (climbing := ~mixed[up[at]]).any():
        at = np.where(climbing, up[at], at)
    return np.append(ops.ids, nesting.NONE)[at]


def reading_ops(facts: Facts, ids: IntArray, copy: IntArray, reads: npt.NDArray[np.bool_]) -> IntArray:
    """The outermost op around each of the calls that read a number that starts no other work, or -1. Shape (ids,)."""
    work, copied = device_work(facts), reads & (copy >= 0)
    copying = work.launch[np.searchsorted(work.ids, copy[copied])]
    found = np.full(len(ids), -1, dtype=np.int64)
    found[reads] = sole_ops(facts, np.concatenate((ids[reads], copying)))[: int(reads.sum())]
    return found
