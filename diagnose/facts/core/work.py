"""Every device operation of the recording with what it is, who asked for it and when."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import NO_DEVICE
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import asking_ops, enclosing_op
from diagnose.facts.core.spans import host_spans
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, distinct
from diagnose.trace.kinds import KernelKind

KERNEL_KINDS = list(KernelKind)


class WorkTable(Struct, frozen=True):
    """Device operations of the whole recording in order of start; all arrays of shape (operations,).

    What happens outside the used steps is in it, so that an edit can change every step alike; numbers that are
    reported are taken where `in_steps`.
    """

    ids: IntArray
    start_ns: IntArray
    end_ns: IntArray
    kind: npt.NDArray[np.int8]  # Position in `KERNEL_KINDS`; copies and memsets are MEMORY.
    launch: IntArray  # Span id of the launching call, or -1.
    op: IntArray  # Span id of the innermost op that was open at the launch, or -1.
    asked_by: IntArray  # Span id of the outermost op that was open at the launch, or -1.
    track: IntArray
    in_steps: npt.NDArray[np.bool_]  # Starts in a used step.

    def of(self, *kernel_kinds: KernelKind) -> npt.NDArray[np.bool_]:
        """Which operations are of one of these kinds."""
        return np.isin(self.kind, [KERNEL_KINDS.index(kernel_kind) for kernel_kind in kernel_kinds])

    @property
    def dur_ns(self) -> IntArray:
        """Durations. Shape (operations,)."""
        return self.end_ns - self.start_ns


@fact
def work_table(facts: Facts) -> WorkTable:
    """The table. Raises Missing without device work."""
    work, used, spans = device_work(facts), steps(facts), facts.rank.spans
    if not len(work.ids):
        raise NO_DEVICE
    names = spans["name"].cat
    codes = names.codes.to_numpy()[work.ids]
    by_code = np.zeros(len(names.categories), dtype=np.int8)
    for code in np.unique(codes):
        by_code[code] = KERNEL_KINDS.index(kinds.kernel_kind(names.categories[code]))
    launched = work.launch >= 0
    op, asked_by = np.full((2, len(work.ids)), -1, dtype=np.int64)
    calls, position = np.unique(work.launch[launched], return_inverse=True)
    op[launched] = enclosing_op(facts, calls)[position]
    asked_by[launched] = asking_ops(facts, calls)[position]
    return WorkTable(
        ids=work.ids,
        start_ns=work.start_ns,
        end_ns=work.end_ns,
        kind=by_code[codes],
        launch=work.launch,
        op=op,
        asked_by=asked_by,
        track=work.track,
        in_steps=(work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns),
    )


def sole_ops(facts: Facts, calls: IntArray) -> IntArray:
    """Id of the outermost op around each call that starts no other device work than these calls do, or -1."""
    ops, launch = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE), device_work(facts).launch
    up = np.append(ops.parents, intervals.NONE)
    other = np.ones(len(facts.rank.spans), dtype=bool)
    other[calls[calls >= 0]] = False
    launch = distinct(launch[launch >= 0])
    others = enclosing_op(facts, launch[other[launch]])
    mixed = np.append(np.zeros(len(ops.ids), dtype=bool), True)
    at = np.searchsorted(ops.ids, distinct(others[others >= 0]))
    while len(at := at[~mixed[at]]):
        mixed[at] = True
        at = distinct(up[at])
    own = np.where(calls >= 0, enclosing_op(facts, np.maximum(calls, 0)), intervals.NONE)
    at = np.where(own >= 0, np.searchsorted(ops.ids, own), intervals.NONE)
    at[mixed[at]] = intervals.NONE
    while (climbing := ~mixed[up[at]]).any():
        at = np.where(climbing, up[at], at)
    return np.append(ops.ids, intervals.NONE)[at]


def reading_ops(facts: Facts, ids: IntArray, copy: IntArray, reads: npt.NDArray[np.bool_]) -> IntArray:
    """For each call of `ids` that `reads` a number by `copy`, the outermost op that only starts such reads; else -1."""
    work = device_work(facts)
    copying = work.launch[np.searchsorted(work.ids, copy[reads & (copy >= 0)])]
    found = np.full(len(ids), -1, dtype=np.int64)
    found[reads] = sole_ops(facts, np.concatenate((ids[reads], copying)))[: int(reads.sum())]
    return found
