"""Which ops compute what nothing reads, as a part of their results is cut away?

Of what is learnt from see `idle_rows`: the backward pass takes all that was computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.shaped import Work, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import used_step
from diagnose.facts.values.values import ALL, SeenOps, inside, seen_ops
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

LEAST = 25
"""Percent of what an op computes that nothing reads (our choice)."""


@dataclass(frozen=True)
class PartRead:
    """Ops that take what another of them has made, the last of which is read in part."""

    percent: int
    """Of what they compute that is read, in the mean by their time."""
    ops: tuple[str, ...]
    """Their names, those that take longest first."""
    work: Work
    steps_seen: int
    """Used steps that have them."""
    site: Site | None
    """The line of the one that takes longest."""
    read_at: Site | None
    """The line of the last."""

    @property
    def unread_ns(self) -> int:
        """What of the work is for nothing, per step."""
        return self.work.longest_ns * (ALL - self.percent) // ALL


@fact
def parts_read(facts: Facts) -> tuple[PartRead, ...]:
    """Those that take longest first. Raises Missing like seen_ops, and if nobody looked."""
    seen = seen_ops(facts)
    if seen.rows is None or seen.rows.read is None:
        raise Missing("how much of results is read", "Record with this version of diagnose profile.")
    read = seen.rows.read
    part = (read <= ALL - LEAST) & seen.makes & ~seen.backward & (seen.ids >= 0).any(axis=0)
    part[list(_learnt_from(facts, seen))] = False
    made = (_group(facts, seen, read, chain) for chain in _chains(seen, np.flatnonzero(part).tolist()))
    return tuple(sorted(made, key=lambda one: -one.unread_ns))


def _learnt_from(facts: Facts, seen: SeenOps) -> set[int]:
    """Ops that have a backward pass."""
    if optional(backward_nodes, facts) is None:
        return set()
    ops, _ = forward_ops(facts)
    seen_in = inside(facts, seen, ops)
    return set[int]().union(*(seen_in.get(op, ()) for op in nodes_of(facts, ops)[0].tolist()))


def _chains(seen: SeenOps, ops: list[int]) -> list[list[int]]:
    """These ops, those together that take what another has made."""
    chain = {one: [one] for one in ops}
    for one in ops:
        for maker in seen.takes[one]:
            if maker in chain and chain[maker] is not chain[one]:
                chain[maker] += chain[one]
                for each in chain[one]:
                    chain[each] = chain[maker]
    return [sorted(some) for some in {id(some): some for some in chain.values()}.values()]


def _group(facts: Facts, seen: SeenOps, read: IntArray, chain: list[int]) -> PartRead:
    ids = seen.ids[:, chain]
    known = ids >= 0
    lasted = np.where(known, facts.rank.spans["dur_ns"].to_numpy()[ids], 0).sum(axis=0)
    order = np.argsort(-lasted, kind="stable").tolist()
    longest, last = (ids[known[:, at], at][:1] for at in (order[0], -1))
    names = facts.rank.spans["name"].iloc[[int(ids[known[:, at], at][0]) for at in order]]
    return PartRead(
        percent=round(float(np.average(read[chain], weights=lasted + 1))),
        ops=tuple(dict.fromkeys(map(str, names))),
        work=work_of(facts, ids[known]),
        steps_seen=len(set(used_step(facts, ids[known]).tolist()) - {-1}),
        site=sites_of(facts, longest)[0],
        read_at=sites_of(facts, last)[0],
    )
