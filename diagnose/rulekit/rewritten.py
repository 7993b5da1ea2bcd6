"""What an entry of the catalogue of rewrites found, with what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.op_table import Call
from diagnose.facts.core.shaped import Shape, Work, work_of
from diagnose.facts.core.steps import steps
from diagnose.facts.run.slowdown import slowdown
from diagnose.rulekit.patterns import Match
from diagnose.trace.frames import Site


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
        places = [
            sorted({at for match_ in self.matches for at in match_.ops[part]}) for part in range(len(self.first.ops))
        ]
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
    def times(self) -> int:
        """Matches per step."""
        first = np.array([match_.ops[0][0] for match_ in self.matches])
        used = self.first.table.used_step[first] >= 0
        return round_half_up(int(used.sum()), steps(self.facts).count)

    @property
    def slower(self) -> float:
        """Times as long recorded steps take as others; 1 where that is not known."""
        known = optional(slowdown, self.facts)
        return max(known.ratio or 1.0, 1.0) if known else 1.0
