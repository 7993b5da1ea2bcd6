"""Patterns of ops that follow each other on tensors of certain shapes, and where they are.

Shapes are written with names for sizes: `"*b n k"` is any number of dimensions, then two; equal names are equal sizes,
a literal is that size, and `n//2+1` is what is left of a spectrum. Ops are matched within a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

from diagnose.facts.autograd.backward import learnt_shapes
from diagnose.facts.core.base import Facts
from diagnose.facts.core.op_table import Call, OpTable, strides_of
from diagnose.facts.core.shaped import Shape
from diagnose.replay.edits import Number

ANY = "*"
WHOLE_STEP = 1 << 30

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
        name, halved, _ = token.lstrip("*").partition("//2+1")
        if halved:
            whole = found.get(name)
            if not isinstance(whole, int) or size != whole // 2 + 1:
                return None
        elif name.isdecimal():
            if size != int(name):
                return None
        elif name not in ("", "_") and found.setdefault(name, size) != size:
            return None
    return found


def shapes_of(pattern: str, bound: Sizes, table: OpTable) -> frozenset[Shape]:
    """The shapes of tensors in the table that the pattern is, with those sizes."""
    whole: Shape = ()
    for token in _tokens(pattern):
        name, halved, _ = token.lstrip("*").partition("//2+1")
        size = int(name) if name.isdecimal() else bound.get(name)
        if size is None:
            return frozenset(one for one in table.by_shape if unify(pattern, one, bound) is not None)
        whole += size if isinstance(size, tuple) else (size // 2 + 1 if halved else size,)
    return frozenset({whole})


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
    """All ops from here to the end of the step that take or make tensors of one shape."""

    shape: str
    """All of its sizes are bound."""
    names: str = ANY
    """Those that may: another one that takes it is in the way."""
    until: str = ""
    """The last op of these ends it, and there has to be one."""
    must: str = ""
    """There has to be one of these."""
    within: int = WHOLE_STEP
    """Ops that are looked at."""
    in_the_way_ends: bool = False
    """What is in the way ends it, rather than being a reason to find nothing."""
    left: Share | None = None
    back: Share | None = None
    """As those of `Op`."""

    @property
    def of_whole_step(self) -> bool:
        """Whether all of a step is looked at."""
        return self.within == WHOLE_STEP and not self.in_the_way_ends

    def may_fit(self, table: OpTable) -> bool:
        """As `Op.may_fit`."""
        return all(Op(names).may_fit(table) for names in (self.until, self.must) if names)

    def follow(self, table: OpTable, at: int, bound: Sizes) -> tuple[list[int], int, Sizes] | None:
        """As `Op.follow`."""
        taken: list[int] = []
        shapes = shapes_of(self.shape, bound, table)
        for one in _between(table, shapes, at, min(at + self.within, table.end[at - 1])):
            call = table.call(one)
            if is_named(call, self.names):
                taken.append(one)
            elif not shapes.isdisjoint(call.shapes):
                if not self.in_the_way_ends:
                    return None
                break
        if self.until:
            ends = [k for k, one in enumerate(taken) if is_named(table.call(one), self.until)]
            taken = taken[: ends[-1] + 1] if ends else []
        enough = not self.must or any(is_named(table.call(one), self.must) for one in taken)
        return (taken, at, bound) if taken and enough else None


def _between(table: OpTable, shapes: frozenset[Shape], start: int, end: int) -> Iterator[int]:
    """Positions from start up to end, in order, of ops that take or make a tensor of these shapes."""
    each = [table.by_shape.get(shape, []) for shape in shapes]
    if len(each) == 1:
        return (each[0][k] for k in range(bisect_left(each[0], start), bisect_left(each[0], end)))
    return iter(sorted({one for some in each for one in some[bisect_left(some, start) : bisect_left(some, end)]}))


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

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Of the first tensor of the first op, in elements; None where they were not recorded."""
        return strides_of(self.facts, int(self.table.spans.ids[self.ops[0][0]]))

    def learns(self, shape: Shape) -> bool:
        """Whether a weight of this shape gets a gradient. Raises Missing like `learnt_shapes`."""
        return shape in learnt_shapes(self.facts)

    def seen_before(self, shape: Shape) -> bool:
        """Whether an op of the step takes a tensor of this shape before the first of these."""
        first = self.ops[0][0]
        begin = next((at + 1 for at in range(first - 1, -1, -1) if self.table.step[at] != self.table.step[first]), 0)
        return any(self.table.call(at).takes(shape) for at in range(begin, first))


def matches(facts: Facts, table: OpTable, pattern: Pattern, where: Callable[[Match], bool]) -> Iterator[Match]:
    """In order; an op belongs to one match at most. What is all of a step is looked for once in a step."""
    taken, tried = set[int](), set[tuple[int, Hashable]]()
    head, *rest = pattern
    assert isinstance(head, Op)
    fitting = [(kind, bound) for kind, call in enumerate(table.calls) if (bound := head.fits(call, {})) is not None]
    if not fitting or not all(part.may_fit(table) for part in rest):
        return
    whole = any(isinstance(part, Takers) and part.of_whole_step for part in rest)
    starts = sorted((at, frozenset(bound.items())) for kind, bound in fitting for at in table.positions[kind])
    for at, sizes in starts:
        key = (table.step[at], sizes)
        if at in taken or (whole and key in tried):
            continue
        tried.add(key)
        match = _match(facts, table, pattern, at)
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
