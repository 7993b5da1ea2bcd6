"""What ops take after changes where the CPU trains: measured, or by what is known of CPUs."""

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.costs.changes import InPrecision, Left, Recost, UpdatedAtOnce
from diagnose.costs.measured import Key, measured_costs, specs_of
from diagnose.facts.core.base import Facts
from diagnose.facts.core.inputs import inputs_read
from diagnose.facts.core.spans import host_spans, in_used_steps
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.measured import OpSpec

DOUBLE_LEFT = (0.7, 0.5, 0.4)  # Of ops in fp64, in fp32: half the bytes, and twice the elements in a vector.
UPDATED = (0.5, 0.2, 0.1)  # Of an update's ops, fused: a fused Adam moves 28 bytes a parameter, many ops 72; 0.17 seen.


class HostBook:
    """Prices of changes of a training's ops on the CPU."""

    def __init__(self, facts: Facts) -> None:
        """The prices of a rank; nothing needs to be recorded for them but ops."""
        self._facts, self._measured = facts, measured_costs(facts)
        self._dur_ns = facts.rank.spans["dur_ns"].to_numpy()

    def left(self, recosts: Sequence[Recost], level: int) -> Left:
        """What is left of ops after these changes; `level`: of the saving, 0 low, 1 likely, 2 high."""
        none = np.zeros(0, dtype=np.int64)
        found = [(none, 1.0)]
        for spec, dtype, mine in self._alike(recosts):
            told = self._measured.share((spec, dtype), float(np.median(self._dur_ns[mine])))
            types = {tensor.dtype for given in inputs_read(spec.shapes, spec.dtypes) for tensor in given}
            unmeasured = DOUBLE_LEFT[level] if "double" in types else 1.0
            found.append((mine, unmeasured if told is None else told[level]))
        found += [self._updated(one, one.change, level) for one in recosts if isinstance(one.change, UpdatedAtOnce)]
        share = np.repeat([left for _, left in found], [len(mine) for mine, _ in found])
        return Left(np.concatenate([mine for mine, _ in found]), share, none)

    def _updated(self, one: Recost, change: UpdatedAtOnce, level: int) -> tuple[IntArray, float]:
        """Spans and the share that is left of them: the optimizer's calls if they were measured, else its ops."""
        key, calls = change.key, change.calls
        if key is not None and calls is not None and len(calls):
            told = self._measured.share(key, float(np.median(self._dur_ns[calls])))
            if told is not None:
                return calls, told[level]
        return one.what, UPDATED[level]

    def asked(self, recosts: Sequence[Recost]) -> Iterator[tuple[Key, float]]:
        """As `CostBook.asked`."""
        for spec, dtype, mine in self._alike(recosts):
            yield (spec, dtype), self._ns_per_step(mine)
        for one in recosts:
            if isinstance(one.change, UpdatedAtOnce) and one.change.key is not None and one.change.calls is not None:
                yield one.change.key, self._ns_per_step(one.change.calls)

    def _ns_per_step(self, ids: IntArray) -> float:
        used = ids[in_used_steps(self._facts, ids)]
        return float(self._dur_ns[used].sum()) / max(steps(self._facts).count, 1)

    def _alike(self, recosts: Sequence[Recost]) -> Iterator[tuple[OpSpec, str, IntArray]]:
        """For each new precision, ops of the same kind and sizes: (spec, dtype, span ids)."""
        for one in recosts:
            if isinstance(one.change, InPrecision):
                ops = self._computing(one.what)
                which, specs = specs_of(self._facts, ops)
                for place, spec in enumerate(specs):
                    yield spec, one.change.dtype, ops[which == place]

    def _computing(self, ids: IntArray) -> IntArray:
        """The outermost of torch's own ops inside these spans or among them: nodes of autograd only hold them."""
        spans = self._facts.rank.spans
        start, track = spans["start_ns"].to_numpy()[ids], spans["track"].to_numpy()[ids].astype(np.int64)
        order = np.lexsort((start, track))
        ids, start, track = ids[order], start[order], track[order]
        ops = host_spans(self._facts, SpanKind.OP, named=lambda name: name.startswith("aten::"))
        inside = intervals.innermost_at(ops.start_ns, ops.track, track, start, start + self._dur_ns[ids])
        return ops.where(inside >= 0).outermost().ids
