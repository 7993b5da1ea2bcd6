"""What an entry of the catalogue of rewrites found, with what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.autograd.op_costs import op_costs
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import named
from diagnose.facts.core.op_table import Call
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.shaped import Shape, Work, work_of
from diagnose.facts.core.spans import host_spans
from diagnose.facts.core.steps import steps
from diagnose.facts.run.slowdown import slowdown
from diagnose.rulekit.patterns import Match
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site

CALL_NS, KERNEL_NS = 10_000, 3_000
"""What an op on the CPU takes for few numbers, and a node of the backward pass as well (15 to 28 us together in planted
loops); and the shortest kernel (2 to 3 us)."""

NESTED_NS = 230
"""Host time to record an op that another calls in a loop (torch 2.13, one CPU: 0.24 us with 2,000 and 18,000 of them in
a call; more where what is recorded does not fit the caches)."""

LEAST_OWN = 0.1
"""Share of an op's host time that is its own, whatever recording the ops inside it seems to take (our choice)."""


@dataclass(frozen=True)
class Found:
    """All that an entry found on one line, on the same sizes if these matter; the largest first."""

    facts: Facts
    matches: tuple[Match, ...]
    site: Site | None

    @property
    def first(self) -> Match:
        """The largest."""
        return self.matches[0]

    def __getattr__(self, name: str) -> int:
        """A size by its name. Raises AttributeError."""
        size = vars(self)["matches"][0].bound.get(name)
        if isinstance(size, int):
            return size
        raise AttributeError(f"The pattern has no size {name}.")

    def calls(self, part: int) -> list[Call]:
        """As `Match.calls`, of the first."""
        return self.first.calls(part)

    def shape(self, name: str) -> Shape:
        """As `Match.shape`."""
        return self.first.shape(name)

    def sizes(self, name: str) -> str:
        """A shape as sentences show it: `256 x 64`."""
        return " x ".join(f"{one:,}" for one in self.shape(name))

    @cached_property
    def parts(self) -> tuple[Work, ...]:
        """What the ops of each part of the pattern take."""
        table = self.first.table
        places = [sorted({at for one in self.matches for at in one.ops[part]}) for part in range(len(self.first.ops))]
        return tuple(work_of(self.facts, table.spans.ids[own]) for own in places)

    @cached_property
    def backs(self) -> tuple[Work, ...]:
        """The backward pass of each part."""
        spans = self.first.table.spans
        own = (spans.where(np.isin(spans.ids, part.ids)) for part in self.parts)
        return tuple(work_of(self.facts, backward_ops(self.facts, one)) for one in own)

    @cached_property
    def work(self) -> Work:
        """All of it that does not stay."""
        priced = [
            own.ids
            for part, *both in zip(self.first.pattern, self.parts, self.backs, strict=True)
            for own, left in zip(both, (part.left, part.back), strict=True)
            if left != 1
        ]
        return work_of(self.facts, np.concatenate(priced))

    @property
    def at_most_ns(self) -> int:
        """No less than `work.longest_ns`, and quickly told of outermost ops."""
        costs, table = op_costs(self.facts), self.first.table
        if not np.array_equal(costs.ids, table.spans.ids):
            return self.work.longest_ns
        total_ns = np.zeros(2, dtype=np.int64)
        for k, part in enumerate(self.first.pattern):
            ops = np.array(sorted({at for one in self.matches for at in one.ops[k]}), dtype=np.int64)
            for each_ns, left in ((costs.forward_ns, part.left), (costs.backward_ns, part.back)):
                total_ns += each_ns[:, ops].sum(axis=1) * (left != 1)
        return round_half_up(int(total_ns.max()), steps(self.facts).count)

    @property
    def own_share(self) -> float:
        """Of the host time of the ops on a CPU what is left without recording the many ops inside them.

        Savings are shares of the recorded step, which is as much longer than the step itself as `slowdown` says.
        """
        every = host_spans(self.facts, SpanKind.OP)
        own = every.where(np.isin(every.ids, self.work.ids)).in_steps(self.facts)
        if not self.on_cpu:
            return 1.0
        inside = nesting.innermost_at(every.start_ns, every.track, own.track, own.start_ns, own.end_ns) >= 0
        recording_ns = NESTED_NS * (int(inside.sum()) - len(own.ids)) / steps(self.facts).count
        return min(max(1 - recording_ns / max(self.work.host_ns, 1), LEAST_OWN) * self.slower, 1.0)

    @property
    def times(self) -> int:
        """Matches per step."""
        first = np.array([one.ops[0][0] for one in self.matches])
        used = self.first.table.used_step[first] >= 0
        return round_half_up(int(used.sum()), steps(self.facts).count)

    @property
    def names(self) -> str:
        """Of the first four different ops."""
        names = list(dict.fromkeys(self.first.table.call(at).name for at in sorted(self.first.positions)))
        return ", ".join(names[:4]) + ", ..." * (len(names) > 4)

    def ops_inside(self, work: Work, name: str) -> float:
        """Ops of a name that these run, for each match."""
        spans = host_spans(self.facts, SpanKind.OP)
        around = spans.where(np.isin(spans.ids, work.ids))
        mine = spans.where(named(self.facts, spans.ids, f"aten::{name}"))
        inside = nesting.innermost_at(mine.start_ns, mine.track, around.track, around.start_ns, around.end_ns)
        return int((inside >= 0).sum()) / len(self.matches)

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU computes."""
        return trains_on_cpu(self.facts)

    @property
    def slower(self) -> float:
        """Times as long recorded steps take as others; 1 where that is not known."""
        known = optional(slowdown, self.facts)
        return max(known.ratio or 1.0, 1.0) if known else 1.0

    @property
    def least_left(self) -> float:
        """Share of the time that is left if each op takes as long as one for few numbers."""
        lasted = self.facts.rank.spans["dur_ns"].to_numpy()[self.work.ids if self.on_cpu else self.work.work_ids]
        least = np.minimum(lasted, CALL_NS if self.on_cpu else KERNEL_NS)
        return float(least.sum()) / max(int(lasted.sum()), 1)
