"""Which matrices are factored at a size that is far above their rank? Shapes tell: of what they are the product."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import named
from diagnose.facts.core.shaped import Shape, Work, inputs_of, main_ops, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans
from diagnose.trace.frames import Site

_PRODUCTS = ("aten::matmul", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::addmm")
_FACTORS = tuple(
    f"aten::{name}"
    for name in (
        *("linalg_solve", "linalg_solve_ex", "linalg_cholesky", "linalg_cholesky_ex", "cholesky", "cholesky_solve"),
        *("cholesky_inverse", "linalg_inv", "linalg_inv_ex", "inverse", "linalg_pinv", "linalg_lu_factor"),
        *("linalg_eigh", "linalg_solve_triangular", "triangular_solve", "linalg_slogdet", "slogdet", "logdet", "det"),
    )
)
_MOST = 24
"""Ops from the product to the last that factors or solves it, at most (our choice)."""

_TIMES = 2
"""So many times its rank a matrix is large, at least (our choice)."""


@dataclass(frozen=True)
class LowRankSolve:
    """Matrices that are products of thinner ones, made and factored on one line."""

    size: int
    """Equations."""
    rank: int
    """Of the product, at most."""
    products: Work
    """With the backward pass."""
    solves: Work
    """What adds to the product, factors and solves it, with the backward pass."""
    site: Site | None

    @property
    def longest_ns(self) -> int:
        """What all of it takes, per step."""
        return self.products.longest_ns + self.solves.longest_ns


@fact
def low_rank_solves(facts: Facts) -> tuple[LowRankSolve, ...]:
    """By line and sizes, those that take longest first. Raises Missing like `main_ops`."""
    tops, _ = main_ops(facts)
    shapes = [[one.shape for some in given for one in some] for given in inputs_of(facts, tops.ids)]
    product, factor = (named(facts, tops.ids, *names) for names in (_PRODUCTS, _FACTORS))
    step = facts.rank.spans["step"].to_numpy()[tops.ids]
    factored = list[tuple[int, list[int], int, int]]()
    for at in np.flatnonzero(product).tolist():
        made, rank = _thin(shapes[at])
        if not rank:
            continue
        after = [
            then
            for then in range(at + 1, min(at + 1 + _MOST, len(shapes)))
            if step[then] == step[at] and any(shape == made for shape in shapes[then])
        ]
        last = max((then for then in after if factor[then]), default=0)
        if last:
            factored.append((at, [then for then in after if then <= last], made[-1], rank))
    sites = sites_of(facts, tops.ids[[until[-1] for _, until, *_ in factored]])
    found: dict[tuple[Site | None, int, int], tuple[list[int], list[int]]] = {}
    for (at, until, size, rank), site in zip(factored, sites, strict=True):
        products, solves = found.setdefault((site, size, rank), ([], []))
        products.append(at)
        solves += until
    all_of = [
        LowRankSolve(size, rank, _both_ways(facts, tops, products), _both_ways(facts, tops, solves), site)
        for (site, size, rank), (products, solves) in found.items()
    ]
    return tuple(sorted(all_of, key=lambda one: -one.longest_ns))


def _both_ways(facts: Facts, tops: HostSpans, at: list[int]) -> Work:
    ops = tops.where(np.unique(at))
    return work_of(facts, np.concatenate((ops.ids, backward_ops(facts, ops))))


def _thin(shapes: list[Shape]) -> tuple[Shape, int]:
    """The shape of a square product of matrices with fewer columns than rows, and its rank; 0 if it is none."""
    for left, right in pairwise(shapes):
        if min(len(left), len(right)) >= 2 and left[:-2] == right[:-2] and left[-2:] == right[-2:][::-1]:
            size, rank = left[-2:]
            if 0 < _TIMES * rank <= size:
                return (*left[:-2], size, size), rank
    return (), 0
