"""Ops that compute what nothing reads, as a part of their results is cut away.

Not of what is learnt from: the backward pass takes all that was computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.seen_ops import ALL, SeenOps, inside, seen_ops
from diagnose.facts.values.wasted_entries import Cause, Wasted, counts, finds, in_a_row, of_rows

LEAST = 25
"""Percent of what an op computes that nothing reads (our choice)."""


@finds(Cause.UNREAD)
def parts_read(facts: Facts) -> Iterator[Wasted]:
    """Ops that take what another of them has made, the last of which is read in part.

    Raises Missing like seen_ops, and if nobody looked.
    """
    seen, unread = seen_ops(facts), ALL - counts(facts, "read")
    part = (unread >= LEAST) & seen.makes & ~seen.backward & (seen.ids >= 0).any(axis=0)
    part[list(_learnt_from(facts, seen))] = False
    for chain in _chains(seen, np.flatnonzero(part).tolist()):
        last = seen.ids[:, chain[-1]]
        rows = list(in_a_row(seen, np.isin(np.arange(len(part)), chain)))
        entry = of_rows(facts, seen, rows, percent=unread, other=int(last.max()))
        yield replace(entry, kind="all" if round(entry.share, 2) == 1 else "")


def _learnt_from(facts: Facts, seen: SeenOps) -> set[int]:
    """Ops that have a backward pass."""
    if optional(backward_nodes, facts) is None:
        return set()
    ops, _ = forward_ops(facts)
    seen_in = inside(facts, seen, ops)
    return set[int]().union(*(seen_in.get(op, ()) for op in nodes_of(facts, ops)[0].tolist()))


def _chains(seen: SeenOps, ops: list[int]) -> list[list[int]]:
    """These ops, those together that take what another has made."""
    chain = {op: [op] for op in ops}
    for op in ops:
        for maker in seen.takes[op]:
            if maker in chain and chain[maker] is not chain[op]:
                chain[maker] += chain[op]
                for each in chain[op]:
                    chain[each] = chain[maker]
    return [sorted(some) for some in {id(some): some for some in chain.values()}.values()]
