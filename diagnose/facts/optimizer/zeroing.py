"""What does it cost to reset gradients?"""

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import known_per_step, recorded_inputs
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import HostSpans, host_spans, in_used_steps, launched_in
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.trace import frames, intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity

NO_ZEROING = Missing("calls of zero_grad", "Call optimizer.zero_grad(), or record with_stack=True.")
NO_LAUNCHES = Missing("launches of device work", "Profile with ProfilerActivity.CPU and ProfilerActivity.CUDA.")


def zeroings(facts: Facts) -> HostSpans:
    """Calls of an optimizer's `zero_grad`, and where stacks were recorded of a module's."""

    def zeroes(name: str) -> bool:
        site = frames.frame_site(name)
        return kinds.activity(name) is Activity.ZERO_GRAD or (site is not None and site.function == "zero_grad")

    return host_spans(facts, SpanKind.ANNOTATION, SpanKind.PYTHON, named=zeroes).outermost()


class GradientZeroing(Struct, frozen=True):
    """Calls of `zero_grad`, and the device work in them: gradients filled with zeros, where not set to None."""

    total_calls: int  # In all used steps.
    launches: int  # Calls that launch device work, per step.
    ops: int  # Outermost ops in the calls, per step.
    on_cpu: bool  # The training computes on the CPU.
    device_ns: int  # Sum of durations of the device work, per step; 0 if gradients are set to None.
    host_ns: int  # Of the calls, per step.
    bytes: int | None  # Written by device work, per step; None if not known of every op.
    ids: IntArray  # The calls: annotations, or Python frames.
    work_ids: IntArray  # Device work launched in the calls.


@fact
def gradient_zeroing(facts: Facts) -> GradientZeroing:
    """The zeroing of gradients. Raises Missing without recorded calls of `zero_grad`, and unless the training computes
    on the CPU without device work or its launches."""
    on_cpu, calls, count = trains_on_cpu(facts), zeroings(facts), steps(facts).count
    if not on_cpu and not (work_table(facts).launch >= 0).any():
        raise NO_LAUNCHES
    if not len(calls.ids):
        raise NO_ZEROING
    used = in_used_steps(facts, calls.ids)
    launched = _NOTHING if on_cpu else _launched(facts, calls)
    ops = host_spans(facts, SpanKind.OP)
    inside = ops.where(intervals.innermost_at(ops.start_ns, ops.track, calls.track, calls.start_ns, calls.end_ns) >= 0)
    return GradientZeroing(
        total_calls=int(used.sum()),
        launches=launched.launches,
        ops=round_half_up(len(inside.outermost().in_steps(facts).ids), count),
        on_cpu=on_cpu,
        device_ns=launched.device_ns,
        host_ns=round_half_up(int((calls.end_ns - calls.start_ns)[used].sum()), count),
        bytes=launched.bytes,
        ids=calls.ids,
        work_ids=launched.work_ids,
    )


class _Launched(Struct, frozen=True):
    """What calls have a device do; the fields as in GradientZeroing."""

    launches: int
    device_ns: int
    bytes: int | None
    work_ids: IntArray


_NOTHING = _Launched(0, 0, None, np.zeros(0, dtype=np.int64))


def _launched(facts: Facts, calls: HostSpans) -> _Launched:
    table, count = work_table(facts), steps(facts).count
    mine = launched_in(facts, calls) >= 0
    inside = mine & table.in_steps
    position, inputs = recorded_inputs(facts, np.unique(table.op[inside]))
    sizes = [[-(2**53) if t.bytes is None else t.bytes for t in input_[0]] if input_ else [] for input_ in inputs]
    written = np.array([*(sum(size) if size else -1 for size in sizes), -1], dtype=np.int64)[position]
    return _Launched(
        launches=round_half_up(len(np.unique(table.launch[inside])), count),
        device_ns=round_half_up(int(table.dur_ns[inside].sum()), count),
        bytes=known_per_step(written, count),
        work_ids=table.ids[mine],
    )
