"""Which products are with matrices of which nearly all is zero, and that nothing is learnt of?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.shaped import Work, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans
from diagnose.facts.values.values import NOT_COUNTED, seen_ops
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site

ALL = 1000
"""Thousandths: of all see `multiplied_by_nothing`, or a recurrent net begins so."""

LEAST = 980
"""Thousandths that have to be zero. A product with a sparse matrix took less time than one with all its zeros below 2 %
of other elements, forth and back (torch 2.13, CSR, one core of a Xeon: 512 to 2,048 rows, by 64 columns)."""


@dataclass(frozen=True)
class SparseProducts:
    """Products of one line with such a matrix."""

    zeros: int
    """Thousandths of its elements, the least of these products."""
    times: int
    """Per step."""
    batched: bool
    """There is a matrix for each of many."""
    work: Work
    """With the backward pass."""
    steps_seen: int
    """Used steps that have them."""
    site: Site | None


@fact
def sparse_products(facts: Facts) -> tuple[SparseProducts, ...]:
    """By line, those that take longest first. Raises Missing like seen_ops, and if nobody counted zeros.

    Not those that shapes tell to be lookups or to scale rows: see `one_hot_products` and `diagonal_matrices`. Nor those
    whose results are known already: see `repeated_values` and `unchanging_values`.
    """
    seen = seen_ops(facts)
    if seen.rows is None:
        raise NOT_COUNTED
    found: dict[Site | None, list[int]] = {}
    sparse = (seen.rows.sparse >= LEAST) & (seen.rows.sparse < ALL) & (seen.first < 0) & ~seen.constant
    sparse &= np.array([name != "aten::convolution" for name in seen.names], dtype=bool)  # Torch has no such.
    chosen = np.flatnonzero(sparse & (seen.ids >= 0).any(axis=0))
    ids = [int(one[one >= 0][0]) for one in seen.ids[:, chosen].T]
    for at, site in zip(chosen.tolist(), sites_of(facts, np.array(ids, dtype=np.int64)), strict=True):
        found.setdefault(site, []).append(at)
    ops = host_spans(facts, SpanKind.OP)
    tops = ops.where(ops.track == host_threads(facts).main)
    made = []
    for site, mine in found.items():
        spans = tops.where(np.isin(tops.ids, seen.ids[:, mine])).outermost()
        made.append(
            SparseProducts(
                zeros=int(seen.rows.sparse[mine].min()),
                times=len(mine),
                batched=any(seen.names[one].endswith("bmm") for one in mine),
                work=work_of(facts, np.concatenate((spans.ids, backward_ops(facts, spans)))),
                steps_seen=int((seen.ids[:, mine] >= 0).any(axis=1).sum()),
                site=site,
            )
        )
    return tuple(sorted(made, key=lambda one: -one.work.longest_ns))
