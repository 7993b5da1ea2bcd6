"""The main thread's ops in order, each with the tensors that it takes: what rewrites are matched against."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.inputs import Tensor
from diagnose.facts.core.names import name_codes
from diagnose.facts.core.shaped import Shape, inputs_of, main_ops
from diagnose.facts.core.spans import HostSpans, used_step
from diagnose.trace.intervals import IntArray
from diagnose.trace.ops import result_shape


class Call(NamedTuple):
    """A name with the tensors that an op of that name took."""

    name: str
    """Without `aten::`."""
    tensors: tuple[Tensor, ...]
    """Of all inputs, those of lists one by one."""
    made: Shape | None
    """The shape of the result, where the name tells it."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of the tensors."""
        return tuple(tensor.shape for tensor in self.tensors)

    @property
    def all_shapes(self) -> frozenset[Shape]:
        """Of the tensors, and of the result where that is known."""
        return frozenset(self.shapes) | ({self.made} if self.made else set())


@dataclass(frozen=True)
class OpTable:
    """The outermost ops of the main thread, in order."""

    spans: HostSpans
    kind: tuple[int, ...]
    """Of each op the position of its call in `calls`."""
    calls: tuple[Call, ...]
    """Each once."""
    step: tuple[int, ...]
    """The mark of the step that each op starts in, or -1; ops are matched within a step."""
    used_step: IntArray
    """The position of the used step, or -1. Shape (ops,)."""

    def call(self, at: int) -> Call:
        """Of the op at a position."""
        return self.calls[self.kind[at]]

    @cached_property
    def positions(self) -> dict[int, list[int]]:
        """Of each call the positions of its ops."""
        found: dict[int, list[int]] = {}
        for at, kind in enumerate(self.kind):
            found.setdefault(kind, []).append(at)
        return found

    @cached_property
    def by_shape(self) -> dict[Shape, list[int]]:
        """Of each shape the positions, in order, of ops that take or make a tensor of it."""
        found: dict[Shape, list[int]] = {}
        for at, kind in enumerate(self.kind):
            for shape in self.calls[kind].all_shapes:
                found.setdefault(shape, []).append(at)
        return found

    @cached_property
    def end(self) -> list[int]:
        """Of each op the position after the last of its step."""
        edges = np.flatnonzero(np.diff(np.array(self.step), append=-2)) + 1
        return [int(one) for one in np.repeat(edges, np.diff(edges, prepend=0))] if self.step else []


@fact
def op_table(facts: Facts) -> OpTable:
    """The table. Raises Missing like `main_ops`."""
    spans, _ = main_ops(facts)
    names = facts.rank.spans["name"].cat.categories
    codes, inputs = name_codes(facts, spans.ids).tolist(), inputs_of(facts, spans.ids)
    number: dict[tuple[int, int], int] = {}
    calls: list[Call] = []
    kind = []
    for code, given in zip(codes, inputs, strict=True):
        key = (code, id(given))  # Equal inputs are one object: see `recorded_inputs`.
        if key not in number:
            number[key] = len(calls)
            name = str(names[code]).removeprefix("aten::")
            tensors = tuple(tensor for some in given for tensor in some)
            calls.append(Call(name, tensors, result_shape(name, [one.shape for one in tensors])))
        kind.append(number[key])
    step = tuple(facts.rank.spans["step"].to_numpy()[spans.ids].tolist())
    return OpTable(spans, tuple(kind), tuple(calls), step, used_step(facts, spans.ids))
