"""Which matrices are made into factors again, to solve with what was solved with before?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import places
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.shaped import Work, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans, used_step
from diagnose.facts.values.values import BEFORE, NOT_COUNTED, seen_ops
from diagnose.trace import nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site

FACTORS = "aten::linalg_lu_factor"
"""How the ops begin that a solver runs to make factors."""


@dataclass(frozen=True)
class RepeatedFactors:
    """Solvers that make factors of a matrix that had been made into factors before."""

    times: int
    """Per step."""
    always: bool
    """Every step solves with the same matrix."""
    work: Work
    """What makes the factors."""
    steps_seen: int
    """Used steps that have them."""
    site: Site | None
    """The line that solves."""


@fact
def repeated_factors(facts: Facts) -> RepeatedFactors | None:
    """None if each matrix is solved with once. Raises Missing like seen_ops, and if nobody counted."""
    seen = seen_ops(facts)
    if seen.rows is None:
        raise NOT_COUNTED
    again = np.flatnonzero(seen.rows.matrix != -1)
    ids = seen.ids[:, again]
    solvers = host_spans(facts, SpanKind.OP)
    solvers = solvers.where(np.isin(solvers.ids, ids))
    makers = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(FACTORS)).outermost()
    around = nesting.innermost_at(makers.start_ns, makers.track, *places(solvers))
    mine = makers.where(around >= 0)
    if not len(mine.ids):
        return None
    return RepeatedFactors(
        times=len(again),
        always=bool((seen.rows.matrix[again] == BEFORE).any()),
        work=work_of(facts, mine.ids),
        steps_seen=len(set(used_step(facts, mine.ids).tolist()) - {-1}),
        site=sites_of(facts, mine.ids[:1])[0],
    )
