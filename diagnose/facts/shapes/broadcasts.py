"""Where are tensors blown up by broadcasting, only to be summed again? A product of matrices does the same at once.

A difference or product of (n, 1, d) and (1, m, d) makes n x m x d elements, of which a sum over the last leaves n x m.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import Inputs, named
from diagnose.facts.core.names import name_of
from diagnose.facts.core.shaped import Shape, Work, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans
from diagnose.trace.frames import Site

LARGER = 8
"""As many times as many elements as its larger input has the result of broadcasting at least (our choice)."""

ELEMENTS = 100_000
"""Of a result, at least: smaller ones take a launch or an op each way, and little else (our choice)."""

_BEGIN = ("aten::sub", "aten::mul")
_SQUARES = ("aten::square", "aten::pow", "aten::mul")
_NORMS = ("aten::norm", "aten::linalg_vector_norm")
_SUMS = ("aten::sum", "aten::mean", *_NORMS)
_MOST = 3
"""Ops from the result of broadcasting to the sum, at most."""


@dataclass(frozen=True)
class PairSums:
    """Sums over pairs of rows that one line computes by broadcasting, and their backward pass."""

    differences: bool
    """Squares of differences are summed, rather than products."""
    shape: Shape
    """Of the largest result of broadcasting."""
    work: Work
    """The ops, and the nodes of their backward pass."""
    site: Site | None


@fact
def pair_sums(facts: Facts) -> tuple[PairSums, ...]:
    """By line, longest first. Raises Missing like `main_ops`."""
    tops, shapes = main_ops(facts)
    starts = np.flatnonzero(named(facts, tops.ids, *_BEGIN))
    given = zip(starts.tolist(), inputs_of(facts, tops.ids[starts]), strict=True)
    blown = [(at, shape) for at, one in given if (shape := _blown_up(one)) is not None]
    chains = [_chain(facts, tops, shapes, at, shape) for at, shape in blown]
    whole = [one for one in chains if one is not None]
    sites = sites_of(facts, tops.ids[[one.ops[0] for one in whole]])
    groups: dict[tuple[Site | None, bool], list[_Chain]] = {}
    for one, site in zip(whole, sites, strict=True):
        groups.setdefault((site, one.differences), []).append(one)
    found = [_summed(facts, tops, some, site) for (site, _), some in groups.items()]
    return tuple(sorted(found, key=lambda one: -one.work.longest_ns))


@dataclass(frozen=True)
class _Chain:
    """Ops from broadcasting to the sum, by their positions."""

    ops: list[int]
    differences: bool
    shape: Shape


def _blown_up(given: Inputs) -> Shape | None:
    """The shape of two tensors broadcast against each other, if it is so much larger than both; else None."""
    both = [one[0].shape for one in given[:2] if one]
    if len(both) < 2:
        return None
    try:
        shape = np.broadcast_shapes(*both)
    except ValueError:
        return None
    large = len(shape) > 2 and prod(shape) >= max(ELEMENTS, LARGER * max(map(prod, both)))
    return tuple(map(int, shape)) if large else None


def _chain(facts: Facts, tops: HostSpans, shapes: tuple[Shape | None, ...], at: int, shape: Shape) -> _Chain | None:
    """The ops from broadcasting to the sum of squares or products; None if they are not that."""
    differences = name_of(facts, int(tops.ids[at])) == "aten::sub"
    ops, done = [at], not differences
    for then in range(at + 1, min(at + 1 + _MOST, len(tops.ids))):
        if shapes[then] != shape:
            return None
        name = name_of(facts, int(tops.ids[then]))
        ops.append(then)
        if name in _SUMS:
            return _Chain(ops, differences, shape) if done != (name in _NORMS) else None
        if done or name not in _SQUARES:
            return None
        done = True
    return None


def _summed(facts: Facts, tops: HostSpans, chains: list[_Chain], site: Site | None) -> PairSums:
    forth = tops.where(np.array([at for one in chains for at in one.ops]))
    return PairSums(
        differences=chains[0].differences,
        shape=max((one.shape for one in chains), key=prod),
        work=work_of(facts, np.concatenate((forth.ids, backward_ops(facts, forth)))),
        site=site,
    )
