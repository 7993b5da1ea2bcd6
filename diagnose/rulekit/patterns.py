"""Patterns of ops that follow each other on tensors of certain shapes, and where they are.

Shapes are written with names for sizes: `"*b n k"` is any number of dimensions, then two; equal names are equal sizes,
and a literal is that size. Ops are matched within a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from math import prod
from typing import Any, TypeAlias

from diagnose.facts.core.base import Facts
from diagnose.facts.core.op_table import Call, OpTable
from diagnose.facts.core.shaped import Shape
from diagnose.replay.edits import Number

Sizes: TypeAlias = "dict[str, int | Shape]"
Share: TypeAlias = "Number | Callable[[Any], Number]"
"""Of the time of ops, or what tells it of a `rewritten.Found`."""


@lru_cache(maxsize=1024)
def _tokens(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split())


@lru_cache(maxsize=1024)
def _names(names: str) -> tuple[frozenset[str], tuple[str, ...]]:
    each = names.split("|")
    return frozenset(each), tuple(one[:-1] for one in each if one.endswith("*"))


def is_named(call: Call, names: str) -> bool:
    """Whether it is one of these, in place or not: names as in `Op`."""
    exact, heads = _names(names)
    return call.name in exact or call.name.removesuffix("_") in exact or call.name.startswith(heads)


def unify(pattern: str, shape: Shape, bound: Sizes) -> Sizes | None:
    """The sizes that make the pattern this shape, with those that are bound already; None if none do."""
    tokens = _tokens(pattern)
    star = next((at for at, token in enumerate(tokens) if token.startswith("*")), None)
    spare = len(shape) - len(tokens) + (star is not None)
    if spare < 0 or (star is None and spare):
        return None
    found = dict(bound)
    at = 0
    for token in tokens:
        size: int | Shape = shape[at : at + spare] if token.startswith("*") else shape[at]
        at += spare if token.startswith("*") else 1
        name = token.lstrip("*")
        if name.isdecimal():
            if size != int(name):
                return None
        elif name not in ("", "_") and found.setdefault(name, size) != size:
            return None
    return found


def shape_of(pattern: str, bound: Sizes) -> Shape:
    """The shape that the pattern is with those sizes, which are all of its own."""
    whole: Shape = ()
    for token in _tokens(pattern):
        name = token.lstrip("*")
        size = int(name) if name.isdecimal() else bound[name]
        whole += size if isinstance(size, tuple) else (size,)
    return whole


@dataclass(frozen=True)
class Op:
    """Ops that a rewrite replaces, or that tell what it is: the next ones that fit."""

    names: str
    """Separated by `|`, without `aten::`; `addmm*` begins so, `*` is any."""
    takes: tuple[str, ...] = ()
    """Shapes of the first tensors that it takes."""
    some: str = ""
    """The shape of any of the tensors that it takes."""
    made: str = ""
    """The shape of what it makes, as far as names tell."""
    within: int = 1
    """Of so many next ops it is the first that fits."""
    least: int = 1
    most: int = 1
    """So many fit in a row, one after the other."""
    left: Share | None = None
    """Share of the time left of these ops in place of the entry's; 1 for those that stay."""
    back: Share | None = None
    """The same of their backward pass."""

    def fits(self, call: Call, bound: Sizes) -> Sizes | None:
        """The sizes that it binds; None if it does not fit."""
        if not is_named(call, self.names):
            return None
        if len(call.tensors) < len(self.takes) or (self.made and call.made is None):
            return None
        pairs = [*zip(self.takes, call.shapes, strict=False), *([(self.made, call.made)] if self.made else [])]
        found: Sizes | None = bound
        for pattern, shape in pairs:
            found = None if found is None or shape is None else unify(pattern, shape, found)
        if found is None or not self.some:
            return found
        return next((more for shape in call.shapes if (more := unify(self.some, shape, found)) is not None), None)

    def may_fit(self, table: OpTable) -> bool:
        """Whether there are ops of these names at all."""
        return not self.least or any(is_named(call, self.names) for call in table.calls)

    def follow(self, table: OpTable, at: int, bound: Sizes) -> tuple[list[int], int, Sizes] | None:
        """The ops from a position on, the position after them, and the sizes; None if there are none."""
        taken: list[int] = []
        while at < len(table.kind) and len(taken) < self.most:
            end = min(at + self.within, table.end[at])
            fitting = ((one, more) for one in range(at, end) if (more := self.fits(table.call(one), bound)) is not None)
            next_one = next(fitting, None)
            if next_one is None:
                break
            at, bound = next_one[0] + 1, next_one[1]
            taken.append(next_one[0])
        return (taken, at, bound) if len(taken) >= self.least else None


@dataclass(frozen=True)
class Takers:
    """All ops from here on that take tensors of one shape, up to others that take or make such, or the step's end."""

    shape: str
    """All of its sizes are bound."""
    names: str
    """Those that may, as those of `Op`."""
    left: Share | None = None
    back: Share | None = None
    """As those of `Op`."""

    def may_fit(self, table: OpTable) -> bool:
        """As `Op.may_fit`."""
        return Op(self.names).may_fit(table)

    def follow(self, table: OpTable, at: int, bound: Sizes) -> tuple[list[int], int, Sizes] | None:
        """As `Op.follow`."""
        such, end = table.by_shape.get(shape_of(self.shape, bound), []), table.end[at - 1]
        following = such[bisect_left(such, at) : bisect_left(such, end)]
        taken = list(takewhile(lambda one: is_named(table.call(one), self.names), following))
        return (taken, at, bound) if taken else None


Part: TypeAlias = "Op | Takers"
Pattern: TypeAlias = "tuple[Part, ...]"


@dataclass(frozen=True)
class Match:
    """Ops that fit an entry, once."""

    facts: Facts
    table: OpTable
    pattern: Pattern
    ops: tuple[tuple[int, ...], ...]
    """Positions, for each part of the pattern."""
    bound: Sizes

    def __getattr__(self, name: str) -> int:
        """A size by its name. Raises AttributeError."""
        size = vars(self).get("bound", {}).get(name)
        if isinstance(size, int):
            return size
        raise AttributeError(f"The pattern has no size {name}.")

    def shape(self, name: str) -> Shape:
        """The sizes that `*name` stands for."""
        size = self.bound[name]
        return size if isinstance(size, tuple) else (size,)

    @property
    def positions(self) -> list[int]:
        """Of all ops."""
        return [at for part in self.ops for at in part]

    def calls(self, part: int) -> list[Call]:
        """What a part of the pattern found."""
        return [self.table.call(at) for at in self.ops[part]]

    @property
    def elements(self) -> int:
        """Of the largest tensor that is taken or made."""
        return max((prod(one) for at in self.positions for one in self.table.call(at).all_shapes), default=0)


def matches(facts: Facts, table: OpTable, pattern: Pattern, where: Callable[[Match], bool]) -> Iterator[Match]:
    """In order; an op belongs to one match at most."""
    taken = set[int]()
    head, *rest = pattern
    assert isinstance(head, Op)
    fitting = [kind for kind, call in enumerate(table.calls) if head.fits(call, {}) is not None]
    if not fitting or not all(part.may_fit(table) for part in rest):
        return
    for at in sorted(at for kind in fitting for at in table.positions[kind]):
        match = _match(facts, table, pattern, at) if at not in taken else None
        if match is not None and where(match) and taken.isdisjoint(match.positions):
            taken.update(match.positions)
            yield match


def _match(facts: Facts, table: OpTable, pattern: Pattern, at: int) -> Match | None:
    bound: Sizes = {}
    ops = []
    for part in pattern:
        found = part.follow(table, at, bound)
        if found is None:
            return None
        taken, at, bound = found
        ops.append(tuple(taken))
    return Match(facts, table, pattern, tuple(ops), bound)
