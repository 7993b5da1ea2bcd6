"""Which products take matrices that are mostly zeros, and which ops depend on rows of a table alone."""

from __future__ import annotations

from typing import Any

from .calls import Op, plain
from .contents import Contents, Unknown

PRODUCTS = frozenset(("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::convolution"))

LOOKS_UP = frozenset(("aten::index", "aten::index_select"))
"""Ops that take rows of a table, by an index. Not embeddings: what is made of words depends on those around them."""

BETWEEN_ROWS = frozenset(("aten::mm", "aten::addmm", "aten::_cdist_forward"))
"""Ops that make something of each two rows of what they take."""


class Counts:
    """Columns of `trace.model.ValueGraph`, to which each op adds."""

    def __init__(self, torch: Any, contents: Contents) -> None:
        self._torch, self._contents = torch, contents
        self.sparse: list[int] = []
        self.looked_up: list[int] = []
        self._learnt: list[bool] = []  # Whether what the op makes depends on what is learnt.
        self._before: set[object] = set()  # What ops of the first step were given.

    def taken(self, op: Op, given: dict[str, Any], tensors: list[Any], backward: bool, step: int) -> None:
        """The next op is called in this step, with these arguments, among them these tensors."""
        at, makers = len(self._learnt), [self._contents.filled_by(tensor) for tensor in tensors]
        self._learnt.append(any(tensor.requires_grad for tensor in tensors) or any(map(self._is_learnt, makers)))
        alike = op.comparable and not self._learnt[at] and self._is_as_before(op, given, tensors, makers, step)
        self.looked_up.append(self._lookup(op.name, given, tensors, makers) if alike else -1)
        known = [one for one, maker in zip(tensors, makers, strict=True) if not self._may_learn(one, maker)]
        counts = op.name in PRODUCTS and not backward
        self.sparse.append(max(map(self._zeros, known), default=0) if counts else 0)

    def _zeros(self, matrix: Any) -> int:
        """Thousandths of its elements that are zero; 0 if it has none, or if torch cannot tell."""
        many = int(matrix.numel())
        try:
            return (1000 * (many - int(self._torch.count_nonzero(matrix)))) // max(many, 1)
        except RuntimeError:  # NotImplementedError is one.
            return 0

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
        places = [
            (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
            for tensor in tensors
            if plain(tensor, self._torch)
        ]
        numbers = [(key, one) for key, one in given.items() if isinstance(one, bool | int | float | str | None)]
        lists = [(key, repr(one)) for key, one in given.items() if isinstance(one, list | tuple) and _of_numbers(one)]
        if op.name in LOOKS_UP:  # Other rows are looked up in each step.
            brought, places = [], []
        what = (op.name, tuple(brought), tuple(places), tuple(numbers), tuple(lists))
        if step == 0:
            self._before.add(what)
        return what in self._before

    def _is_learnt(self, maker: int) -> bool:
        return maker >= 0 and self._learnt[maker]

    def _may_learn(self, tensor: Any, maker: int) -> bool:
        return tensor.requires_grad or self._is_learnt(maker) or tensor.dim() < 2 or not plain(tensor, self._torch)

    def _key(self, tensor: Any) -> object:
        """Of equal ones equal; of those that cannot be compared none is."""
        try:
            return self._contents.key(tensor)
        except Unknown:
            return object()


def _of_rows(given: dict[str, Any]) -> bool:
    indices = given.get("indices")
    return given.get("dim") == 0 if indices is None else indices[0] is not None


def _of_numbers(values: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(value, bool | int | float) for value in values)
