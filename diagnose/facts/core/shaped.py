"""Ops that are told by the shapes of their inputs, and what they take with the device work that they launch."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import NO_SHAPES, Inputs, recorded_inputs
from diagnose.facts.core.names import name_codes
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in
from diagnose.facts.core.steps import steps
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

Shape = tuple[int, ...]


class Work(Struct, frozen=True):
    """Ops of the whole recording, the device work launched in them, and what both take."""

    ids: IntArray
    work_ids: IntArray
    data_ids: IntArray  # What lasts for as long as there is data: the device work, and the ops that launch none.
    host_ns: int  # Time in the ops, per step.
    device_ns: int  # Sum of durations of the device work, per step.

    @property
    def longest_ns(self) -> int:
        """The larger of both times."""
        return max(self.host_ns, self.device_ns)


def work_of(facts: Facts, ids: IntArray) -> Work:
    """What these ops take, each moment of a thread counted once."""
    spans, count, work = host_spans(facts, SpanKind.OP), steps(facts).count, device_work(facts)
    spans = spans.where(np.isin(spans.ids, ids)).outermost()
    launched, used = launched_in(facts, spans), spans.in_steps(facts)
    in_steps = np.append(np.isin(spans.ids, used.ids), False)[launched]
    return Work(
        ids=spans.ids,
        work_ids=work.ids[launched >= 0],
        data_ids=np.concatenate((np.delete(spans.ids, launched[launched >= 0]), work.ids[launched >= 0])),
        host_ns=round_half_up(int((used.end_ns - used.start_ns).sum()), count),
        device_ns=round_half_up(int((work.end_ns - work.start_ns)[in_steps].sum()), count),
    )


@fact
def main_ops(facts: Facts) -> tuple[HostSpans, tuple[Shape | None, ...]]:
    """The outermost ops of the main thread, and the shape of the first input of each.

    Raises Missing without shapes, and like host_threads.
    """
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    ops = host_spans(facts, SpanKind.OP)
    tops = ops.where(ops.track == host_threads(facts).main).outermost()
    return tops, tuple(first_shape(input_) for input_ in inputs_of(facts, tops.ids))


def inputs_of(facts: Facts, ids: IntArray) -> list[Inputs]:
    """Of each op; () where they were not recorded."""
    position, inputs = recorded_inputs(facts, ids)
    return [inputs[one] if one >= 0 else () for one in position.tolist()]


def first_shape(inputs: Inputs) -> Shape | None:
    """The shape of the first input, if it is a tensor, or of the first of a list."""
    return inputs[0][0].shape if inputs and inputs[0] else None


def calls_alike(facts: Facts, ids: IntArray) -> IntArray:
    """Of each op a number for its name with shapes and types of its inputs; -1 where these were not recorded."""
    position, _ = recorded_inputs(facts, ids)
    _, number = np.unique(np.stack((position, name_codes(facts, ids))), axis=1, return_inverse=True)
    return np.where(position >= 0, number.reshape(-1), nesting.NONE)
