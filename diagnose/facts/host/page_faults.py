"""How much memory does each step fetch from the system? `diagnose profile` counts pages that are touched first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import recorded_inputs
from diagnose.facts.core.run import manifest, trains_on_cpu
from diagnose.facts.core.spans import host_spans, on_training_threads
from diagnose.facts.core.steps import steps
from diagnose.facts.run.slowdown import slowdown
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

BYTE_NS = 0.25  # What fetching takes: 80 MB took 20 ms of one thread (an Intel Xeon, in a virtual machine).

_NOT_COUNTED = Missing("how much memory is fetched anew", "Record with diagnose profile.")


@dataclass(frozen=True)
class FetchedMemory:
    """Memory that a training on the CPU fetches in every step."""

    bytes: int  # Per step without the profiler.
    ns: int  # What that takes, per recorded step: as much longer as it is.
    op_ids: IntArray  # Outermost ops of the training threads, of the whole recording: in some of them it is fetched.
    ops_ns: int  # Time in them, per step.
    largest_bytes: int | None  # Of a tensor that an op takes; None if that is not recorded.


@fact
def fetched_memory(facts: Facts) -> FetchedMemory | None:
    """None where the training is not on the CPU alone. Raises Missing if nobody counted, and without steps."""
    alone = manifest(facts).unprofiled
    if alone is None or alone.fetched_bytes is None:
        raise _NOT_COUNTED
    if not trains_on_cpu(facts):
        return None
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    used, slower = ops.in_steps(facts), optional(slowdown, facts)
    ratio = slower.ratio if slower is not None and slower.ratio else 1.0
    return FetchedMemory(
        bytes=alone.fetched_bytes,
        ns=round(alone.fetched_bytes * BYTE_NS * max(ratio, 1.0)),
        op_ids=ops.ids,
        largest_bytes=max((size for size in _sizes(facts, ops.ids) if size), default=None),
        ops_ns=round_half_up(int((used.end_ns - used.start_ns).sum()), steps(facts).count),
    )


def _sizes(facts: Facts, ops: IntArray) -> Iterator[int | None]:
    """Of the tensors that these ops take, each kind of call once."""
    _, distinct = recorded_inputs(facts, ops)
    return (tensor.bytes for inputs in distinct for some in inputs for tensor in some)
