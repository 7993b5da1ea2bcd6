"""Are products of matrices taken in an order that takes far more multiplications than another one would?

Of (A B) C, where nothing else takes A B: A (B C). And of polynomials of X Xᵀ that are multiplied with X, which has more
rows than columns: X times the same polynomials of Xᵀ X.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from diagnose.facts.autograd.backward import backward_ops
from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import NO_SHAPES, Inputs
from diagnose.facts.core.seen_ops import SeenOps, seen_ops
from diagnose.facts.core.shaped import Shape, Work, inputs_of, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans, used_step
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site

FEWER = 0.5
"""Share of the multiplications that may be left of an order, for it to be worse (our choice)."""

_FACTORS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
_UNBIASED = ("aten::mm", "aten::bmm")
"""What a layer with a bias makes is left as it is: A (B C + d) is another model, and two layers may be wanted."""

_SCALES = ("aten::mul", "aten::div", "aten::clone", "aten::_to_copy")
_SUMS = ("aten::add", "aten::sub", *_SCALES)


@dataclass(frozen=True)
class ProductOrder:
    """Products of one line and of equal sizes."""

    squares: bool
    """Of a matrix with itself on its long side; else a product of three."""
    largest: Shape
    """What is made on the way, and need not be as large."""
    left: float
    """Share of the multiplications that are left in the other order."""
    times: int
    """Per step."""
    work: Work
    """With the backward pass."""
    steps_seen: int
    """Used steps that have them."""
    site: Site | None
    """The line of the first."""


class _Product(NamedTuple):
    """`many` products, each of m by k with k by n."""

    many: int
    m: int
    k: int
    n: int

    @property
    def multiplications(self) -> int:
        return self.many * self.m * self.k * self.n


class _Run(NamedTuple):
    """Ops whose products could be taken in another order."""

    squares: bool
    largest: Shape
    left: float
    ops: tuple[int, ...]


@fact
def product_orders(facts: Facts) -> tuple[ProductOrder, ...]:
    """Those that take longest first. Raises Missing like seen_ops, and without shapes."""
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    seen = seen_ops(facts)
    forth = np.flatnonzero(seen.makes & ~seen.backward & (seen.ids >= 0).any(axis=0)).tolist()
    given = inputs_of(facts, np.array([seen.ids[:, at].max() for at in forth], dtype=np.int64))
    ops = _Ops(seen, dict(zip(forth, given, strict=True)))
    runs = list(ops.squares())
    taken = {op for one in runs for op in one.ops}
    runs += [one for one in ops.chains() if taken.isdisjoint(one.ops)]
    found: dict[tuple[bool, Shape, float, Site | None], list[_Run]] = {}
    sites = sites_of(facts, np.array([seen.ids[:, one.ops[0]].max() for one in runs], dtype=np.int64))
    for one, site in zip(runs, sites, strict=True):
        found.setdefault((one.squares, one.largest, one.left, site), []).append(one)
    made = []
    for (squares, largest, left, site), some in found.items():
        ids = seen.ids[:, [op for one in some for op in one.ops]]
        spans = host_spans(facts, SpanKind.OP)
        spans = spans.where(np.isin(spans.ids, ids)).outermost()
        made.append(
            ProductOrder(
                squares=squares,
                largest=largest,
                left=left,
                times=len(some),
                work=work_of(facts, np.concatenate((spans.ids, backward_ops(facts, spans)))),
                steps_seen=len(set(used_step(facts, spans.ids).tolist()) - {-1}),
                site=site,
            )
        )
    return tuple(sorted(made, key=lambda one: -one.work.longest_ns))


class _Ops:
    """Ops that were seen and are not of a backward pass, with what they take."""

    def __init__(self, seen: SeenOps, given: dict[int, Inputs]) -> None:
        self.names, self.takes, self.given = seen.names, seen.takes, given
        self.products = {at: found for at in given if (found := _product(seen.names[at], given[at]))}
        self.takers: dict[int, list[int]] = {}
        for at in np.flatnonzero(seen.makes & ~seen.backward).tolist():
            for maker in seen.takes[at]:
                self.takers.setdefault(maker, []).append(at)

    def squares(self) -> Iterator[_Run]:
        """X Xᵀ, what is made of that alone, and the products of it with X."""
        for at, one in self.products.items():
            alone = len(self.takes[at]) == 1 and self.takes[at][0] >= 0
            if alone and one.m == one.n > one.k and (run := self._of_square(at, one)):
                yield run

    def _of_square(self, at: int, square: _Product) -> _Run | None:
        side = (square.m, square.m)
        inner, ends, waiting = {at}, set[int](), list(self.takers.get(at, ()))
        while waiting:
            op = min(waiting)  # What it takes was made before it.
            waiting = [one for one in waiting if one != op]
            makers, shapes = set(self.takes[op]), _matrices(self.given.get(op, ()))
            if makers <= inner and set(shapes) == {side} and self.names[op] in (*_FACTORS, *_SUMS):
                inner.add(op)
                waiting += self.takers.get(op, ())
            elif makers <= {*inner, *self.takes[at]} and self._multiplies(op, (square.k, *side)):
                ends.add(op)
            else:
                return None
        ops = sorted(inner | ends)
        now = sum(self.products[op].multiplications for op in ops if op in self.products)
        short = (square.k / square.m) ** 3  # Of those of the square with itself, squared for the others.
        least = sum(
            self.products[op].multiplications * (short if op in inner - {at} else square.k / square.m)
            for op in ops
            if op in self.products
        )
        return _Run(True, side, least / now, tuple(ops)) if ends and least <= FEWER * now else None

    def chains(self) -> Iterator[_Run]:
        """A product that only another one takes, perhaps scaled."""
        for at, first in self.products.items():
            if self.names[at] not in _UNBIASED:
                continue
            run, last = [at], at
            while len(takers := self.takers.get(last, [])) == 1 and self._scales(takers[0]):
                last = takers[0]
                run.append(last)
            if len(takers) != 1 or takers[0] not in self.products or len(self.takes[takers[0]]) == 1:
                continue
            second = self.products[takers[0]]
            then = [_other_order(first, second, as_first=True), _other_order(first, second, as_first=False)]
            known = [one for one in then if one is not None]
            now = first.multiplications + second.multiplications
            if known and max(known) <= FEWER * now:
                yield _Run(False, (first.m, first.n), max(known) / now, (*run, takers[0]))

    def _multiplies(self, op: int, sides: tuple[int, int, int]) -> bool:
        one = self.products.get(op)
        return one is not None and sorted((one.m, one.k, one.n)) == sorted(sides)

    def _scales(self, op: int) -> bool:
        return self.names[op] in _SCALES and len(self.takes[op]) == 1 and len(_matrices(self.given.get(op, ()))) == 1


def _other_order(first: _Product, then: _Product, *, as_first: bool) -> int | None:
    """Multiplications if the factor of the second that the first has made is not made, but used part by part.

    As first or second factor; None if it is not as large. It may be transposed.
    """
    sides = (then.m, then.k) if as_first else (then.k, then.n)
    if first.many != then.many or sorted((first.m, first.n)) != sorted(sides):
        return None
    beside = then.n if as_first else then.m
    return first.many * first.k * beside * sum(sides)


def _product(name: str, inputs: Inputs) -> _Product | None:
    """None if it is none, or shapes were not recorded."""
    places = _FACTORS.get(name)
    if places is None or len(inputs) <= places[1] or not all(inputs[place] for place in places):
        return None
    left, right = (inputs[place][0].shape for place in places)
    if len(left) != len(right) or len(left) < 2 or left[-1] != right[-2]:
        return None
    return _Product(prod(left[:-2]), left[-2], left[-1], right[-1])


def _matrices(inputs: Inputs) -> list[Shape]:
    """The sides of tensors that an op takes, but for single numbers."""
    shapes = [tensor.shape for some in inputs for tensor in some]
    return [shape[-2:] for shape in shapes if prod(shape) > 1]
