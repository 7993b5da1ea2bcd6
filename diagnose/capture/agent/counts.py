"""Of which ops rows need not be computed, as they are zero or equal; and of which a matrix is mostly zeros."""

from __future__ import annotations

from typing import Any

from .calls import Op, plain, some_of
from .contents import Contents, Unknown
from .rows import Rows

TAKES_ROWS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::convolution": 0}
"""Which tensor of a product has the rows that it computes."""

CONVOLUTION = "aten::convolution"

PRODUCTS = frozenset((*TAKES_ROWS, "aten::mul", "aten::convolution_backward"))
"""Ops that are slow on a CPU with subnormal numbers."""

OF_SAMPLES = frozenset((CONVOLUTION, "aten::convolution_backward"))
"""Ops whose tensors have one row for each sample, whatever their dimensions."""

SPREADS = frozenset(f"aten::{name}" for name in ("index", "index_select", "gather", "repeat", "clone", "cat"))
"""Ops that make rows by taking some several times. Not embeddings: a table may have fewer rows than a text."""

LOOKS_UP = frozenset(("aten::index", "aten::index_select"))
"""Ops that take rows of a table, by an index. Not embeddings: what is made of words depends on those around them."""

BETWEEN_ROWS = frozenset(("aten::mm", "aten::addmm", "aten::_cdist_forward"))
"""Ops that make something of each two rows of what they take."""

MASKS = "aten::mul"
"""Multiplies a gradient with what may be zero."""

SOLVES = frozenset(("aten::_linalg_solve_ex",))
"""Ops that take a matrix first and make factors of it."""


class Counts:
    """Columns of `trace.model.ValueGraph`, to which each op adds."""

    def __init__(self, torch: Any, contents: Contents) -> None:
        self._torch, self._contents, self._rows = torch, contents, Rows(torch)
        self.alike: list[int] = []
        self.spread: list[int] = []
        self.idle: list[int] = []
        self.masked: list[int] = []
        self.sparse: list[int] = []
        self.matrix: list[int] = []
        self.looked_up: list[int] = []
        self.subnormal: list[int] = []
        self.separable: list[int] = []
        self._backward: list[bool] = []
        self._learnt: list[bool] = []
        """Whether what the op makes depends on what is learnt."""
        self._before: set[object] = set()
        """What ops of the first step were given."""
        self._solved: dict[object, int] = {}
        """Of each matrix the op that solved with it first."""

    def taken(self, op: Op, given: dict[str, Any], tensors: list[Any], backward: bool, step: int) -> None:
        """The next op is called in this step, with these arguments, among them these tensors."""
        at, name = len(self.alike), op.name
        makers = [self._contents.filled_by(one) for one in tensors]
        self._learnt.append(any(one.requires_grad for one in tensors) or any(map(self._is_learnt, makers)))
        self._backward.append(backward)
        gradients = [backward and maker >= 0 and self._backward[maker] for maker in makers]
        first = self._solved.setdefault(self._matrix(tensors[0]), at) if name in SOLVES else at
        self.matrix.append(first if first < at else -1)
        alike = op.comparable and not self._learnt[at] and self._is_as_before(op, given, tensors, makers, step)
        self.looked_up.append(self._lookup(name, given, tensors, makers) if alike else -1)
        self.alike.append(0 if backward else self._alike_of(name, tensors))
        self.spread.append(0)
        self.idle.append(self._idle_of(name, tensors, gradients))
        self.masked.append(self._idle_of(name, tensors, [backward and name == MASKS and not one for one in gradients]))
        self.sparse.append(0)
        self.subnormal.append(max(map(self._rows.subnormal, tensors), default=0) if name in PRODUCTS else 0)
        fixed = name == CONVOLUTION and not self._may_learn(tensors[1], makers[1])
        self.separable.append(int(fixed and self._rows.separable(tensors[1])))
        if name in TAKES_ROWS and not backward:
            known = [one for one, maker in zip(tensors, makers, strict=True) if not self._may_learn(one, maker)]
            self.sparse[at] = max(map(self._rows.zeros, known), default=0)

    def made(self, at: int, name: str, tensor: Any) -> None:
        """That op has made this."""
        spreads = name in SPREADS and not self._backward[at]
        if not self.alike[at] and not spreads:
            return
        found = self._rows.alike(tensor, name in OF_SAMPLES, self._key(tensor))
        if self.alike[at]:
            self.alike[at] = min(self.alike[at], found)
        else:
            self.spread[at] = found

    def _lookup(self, name: str, given: dict[str, Any], tensors: list[Any], makers: list[int]) -> int:
        """The op that took rows of a table, if nothing but they and what never changes is taken since; or -1."""
        if name in LOOKS_UP and makers[0] < 0 and len(tensors) == 2 and tensors[1].dim() == 1 and _of_rows(given):
            return len(self._learnt) - 1
        lookups = [self.looked_up[maker] for maker in makers if maker >= 0]
        between_rows = len(lookups) > 1 and name in BETWEEN_ROWS
        return lookups[0] if len(set(lookups)) == 1 and not between_rows and not given.get("training") else -1

    def _is_as_before(self, op: Op, given: dict[str, Any], tensors: list[Any], makers: list[int], step: int) -> bool:
        """Whether the first step has had such an op, with equal numbers beside what it takes of other ops.

        Places are looked at of all tensors. What somebody else makes anew, as NumPy does, has never been there.
        """
        brought = [self._key(one) for one, maker in zip(tensors, makers, strict=True) if maker < 0]
        places = [(tuple(one.shape), one.stride(), one.storage_offset()) for one in tensors if plain(one, self._torch)]
        numbers = [(key, one) for key, one in given.items() if isinstance(one, bool | int | float | str | None)]
        lists = [(key, repr(one)) for key, one in given.items() if isinstance(one, list | tuple) and _of_numbers(one)]
        if op.name in LOOKS_UP:  # Other rows are looked up in each step.
            brought, places = [], []
        what = (op.name, tuple(brought), tuple(places), tuple(numbers), tuple(lists))
        if step == 0:
            self._before.add(what)
        return what in self._before

    def _matrix(self, tensor: Any) -> object:
        """With some elements: what NumPy writes to memory counts for nothing else."""
        return self._key(tensor), repr(some_of(tensor)) if plain(tensor, self._torch) else ""

    def _alike_of(self, name: str, tensors: list[Any]) -> int:
        """Rows count as equal that are so in all that has as many elements as any, and lie in memory of their own."""
        most = max((one.numel() for one in tensors), default=0)
        rows = [one for one in tensors if one.numel() == most]
        if name in TAKES_ROWS:
            rows = tensors[TAKES_ROWS[name] :][:1]
        if any(not plain(one, self._torch) or 0 in one.stride() for one in rows):
            return 0
        return min((self._rows.alike(one, name in OF_SAMPLES, self._key(one)) for one in rows), default=0)

    def _idle_of(self, name: str, tensors: list[Any], chosen: list[bool]) -> int:
        some = [one for one, counts in zip(tensors, chosen, strict=True) if counts]
        return max((self._rows.idle(one, name in OF_SAMPLES, self._key(one)) for one in some), default=0)

    def _is_learnt(self, maker: int) -> bool:
        return maker >= 0 and self._learnt[maker]

    def _may_learn(self, tensor: Any, maker: int) -> bool:
        """Or is no matrix."""
        return tensor.requires_grad or self._is_learnt(maker) or tensor.dim() < 2 or not plain(tensor, self._torch)

    def _key(self, tensor: Any) -> object:
        """Of equal ones equal; of those that cannot be compared none is."""
        try:
            return self._contents.key(tensor)
        except Unknown:
            return object()


def _of_rows(given: dict[str, Any]) -> bool:
    """Whether an op that looks up chooses along the first dimension."""
    indices = given.get("indices")
    return given.get("dim") == 0 if indices is None else indices[0] is not None


def _of_numbers(values: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(one, bool | int | float) for one in values)
