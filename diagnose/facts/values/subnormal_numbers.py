"""Products that subnormal numbers make slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.seen_ops import is_layer, seen_ops
from diagnose.facts.core.shaped import inputs_of
from diagnose.facts.values.ledger import Cause, Wasted, counts, finds, of_spans
from diagnose.trace.intervals import IntArray

LEAST_WORK, SLOW, SLOW_FOR_OTHERS = 100_000, 1.4, 3.0
"""Multiplications of a product whose pace is looked at, and times the time of others of the same op, or of all, from
which on it is slow (our choice): of one layer for many samples and of many small ones each has a pace of its own."""


@finds(Cause.SUBNORMAL_NUMBERS)
def subnormal_products(facts: Facts) -> Iterator[Wasted]:
    """Products of matrices that take such numbers, and more time than others of as many operations.

    None if there are no others to compare them with. Raises Missing like seen_ops, and if nobody looked.
    """
    seen, subnormal = seen_ops(facts), counts(facts, "subnormal")
    products = [at for at in np.flatnonzero(seen.makes).tolist() if is_layer(seen.names[at])]
    work = np.array([_multiplications(facts, seen.ids[:, at]) for at in products])
    lasted = facts.rank.spans["dur_ns"].to_numpy()
    ns = np.array([lasted[one[one >= 0]].mean() if (one := seen.ids[:, at]).max() >= 0 else 0.0 for at in products])
    share = subnormal[products]
    known = (work >= LEAST_WORK) & (ns > 0)
    quick, each = known & (share == 0), ns / np.maximum(work, 1)
    if not quick.any():
        return
    names = np.array([seen.names[at] for at in products])
    pace, times = np.full(len(products), np.median(each[quick])), np.full(len(products), SLOW_FOR_OTHERS)
    for name in np.unique(names[quick]).tolist():
        pace[names == name], times[names == name] = np.median(each[quick & (names == name)]), SLOW
    slow = known & (share > 0) & (ns >= times * pace * work)
    mine = seen.ids[:, np.array(products, dtype=np.int64)[slow]]
    if slow.any():
        usual = float((pace[slow] * work[slow]).sum() / ns[slow].sum())
        yield replace(of_spans(facts, mine[mine >= 0], share=1 - usual), detail=f"{share[slow].max() / 10:.2g} %")


def _multiplications(facts: Facts, ids: IntArray) -> int:
    """Of a product of matrices, or of many; 0 of other ops, and where shapes were not recorded."""
    for inputs in inputs_of(facts, ids[ids >= 0]):
        shapes = [some[0].shape for some in inputs if some and len(some[0].shape) > 1]
        if len(shapes) >= 2 and len(shapes[-1]) == len(shapes[-2]) and shapes[-2][-1] == shapes[-1][-2]:
            return prod(shapes[-2]) * shapes[-1][-1]
    return 0
