"""How much of what ops compute does anything read?

Of each result it is known which part of it each op takes: all, some rows, as lines of a slice, or some elements of each
row. Where an op makes each row (or element) of the one in its place, what it takes need not be made any more than what
it makes is read. As read counts what is still there after the next step, what something else than an op reads, and what
the backward pass goes through: of that gradients tell it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod
from typing import Any, NamedTuple

from .calls import Op, plain
from .contents import Contents

BY_ROW = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::linear": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
    "aten::_softmax": 0,
    "aten::_log_softmax": 0,
    "aten::native_layer_norm": 0,
    "aten::_fft_r2c": 0,
    "aten::_fft_c2c": 0,
    "aten::_fft_c2r": 0,
    "aten::_scaled_dot_product_flash_attention": 0,
    "aten::_scaled_dot_product_efficient_attention": 0,
    "aten::_scaled_dot_product_cudnn_attention": 0,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 0,
}
"""Ops that make each row of a row of this tensor, and of nothing else that it has."""

PRODUCTS = frozenset(name for name in BY_ROW if name.endswith(("mm", "linear")))
"""Of these any element can be made alone."""

COPIES = frozenset(("aten::clone", "aten::_to_copy"))

KEEPS = "batch_norm"
"""In names of ops that write to what they do not say."""

TAKES_ROWS = frozenset(("aten::index", "aten::index_select"))
"""Ops whose results are rows of the first tensor, by others."""


class _Made(NamedTuple):
    """A result, which is all that is in its memory."""

    alive: Any
    """A weak reference to that."""
    memory: int
    elements: int
    size: int
    """Bytes of an element."""
    row: int
    """Elements of what lies together: the dimension that is innermost in memory."""


class _Reading(NamedTuple):
    """What an op takes of what another has made."""

    maker: int
    """-1: of nothing that is known."""
    elements: float
    """Share of them; over 1 if some are taken several times."""
    rows: float
    """Share of the rows some of whose elements are taken."""
    part: object
    """Equal for equal parts."""
    whole_rows: bool
    """What is a row of what is taken is one of what was made, or are some."""
    like: str = ""
    """As many elements are needed, in shares, as of what the op makes "elements" or "rows"; "": all."""
    rows_too: bool = False
    """As many rows are needed, in shares, as of what the op makes."""


class Parts:
    """Of all ops, in the order in which they are called."""

    def __init__(self, torch: Any, contents: Contents) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._contents, self._weak = torch, contents, StorageWeakRef
        self._made: dict[int, _Made] = {}
        self._takes: list[list[_Reading]] = []
        self._divisible: list[str] = []
        """Of each op what of it can be left out: "elements", "rows", or "" for nothing."""
        self._learnt: list[bool] = []
        """Whether the backward pass goes through it: gradients tell what of it counts."""
        self._spare: set[int] = set()
        """Ops that can be left out as a whole."""
        self._elsewhere: set[int] = set()
        """Ops whose results are read by something else than ops."""

    def taken(self, op: Op, tensors: list[Any]) -> None:
        """The next op is called, with these tensors. What is written to counts as taken as a whole."""
        takes = [self._reading(tensor, bool(op.writes)) for tensor in tensors]
        learnt = any(tensor.requires_grad for tensor in tensors) or any(self._is_learnt(take.maker) for take in takes)
        self._takes.append(takes)
        self._learnt.append(learnt and self._torch.is_grad_enabled())
        self._divisible.append("")

    def made(self, at: int, op: Op, tensors: list[Any], given: dict[str, Any], made: Any) -> None:
        """That op, not of a backward pass, has made this in new memory, of these tensors and other arguments."""
        if not made.numel() or made.untyped_storage().nbytes() != made.numel() * made.element_size():
            return
        alive, inner = self._weak(made.untyped_storage()), _inner(made)
        self._made[at] = _Made(alive, _memory(made), made.numel(), made.element_size(), _row(made))
        takes = self._takes[at]
        if op.comparable and not op.writes and op.name not in (*COPIES, *TAKES_ROWS) and KEEPS not in op.name:
            self._spare.add(at)
        if op.pointwise or op.name in COPIES:
            self._divisible[at] = "elements"
            for place, (tensor, reading) in enumerate(zip(tensors, takes, strict=True)):
                alike = reading.maker >= 0 and tensor.shape == made.shape
                rows_too = alike and reading.whole_rows and _inner(tensor) == inner
                takes[place] = reading._replace(like="elements" if alike else "", rows_too=rows_too)
        elif op.name in TAKES_ROWS and inner is not None and plain(tensors[0], self._torch):
            self._divisible[at] = "elements"
            takes[0] = self._picked(takes[0], tensors[0], given, made)
        elif op.name in BY_ROW:
            rows, reading = tensors[BY_ROW[op.name]], takes[BY_ROW[op.name]]
            if plain(rows, self._torch) and rows.dim() and _along_rows(rows, given, made):
                self._divisible[at] = "elements" if op.name in PRODUCTS else "rows"
                takes[BY_ROW[op.name]] = reading._replace(like="rows", rows_too=reading.whole_rows)

    def read(self) -> list[int]:
        """Of each op percent of what it computes that is read, as far as it could compute less; else 100."""
        needed = [(1.0, 1.0)] * len(self._takes)
        sums: dict[int, tuple[float, float]] = {}
        known: set[tuple[int, object]] = set()
        read = [100] * len(self._takes)
        for at in range(len(self._takes) - 1, -1, -1):  # What takes it was called later.
            if self._is_known(at) and (at in sums or at in self._spare):
                elements, rows = sums.get(at, (0.0, 0.0))
                needed[at] = min(elements, 1.0), min(rows, 1.0)
            nothing = at in self._spare and not needed[at][0]
            share = {"elements": needed[at][0], "rows": needed[at][1], "": 0.0 if nothing else 1.0}
            for one in self._takes[at]:
                least, least_rows = share[one.like], share["rows" if one.rows_too else ""]
                if least == least_rows == 1.0:
                    if (one.maker, one.part) in known:
                        continue
                    known.add((one.maker, one.part))
                before = sums.get(one.maker, (0.0, 0.0))
                sums[one.maker] = before[0] + one.elements * least, before[1] + one.rows * least_rows
            read[at] = ceil(100 * share[self._divisible[at]])
        return read

    def read_elsewhere(self, tensor: Any) -> None:
        """Something else than an op reads it."""
        self._elsewhere.add(self._contents.filled_by(tensor))

    def _is_learnt(self, maker: int) -> bool:
        return maker >= 0 and self._learnt[maker]

    def _is_known(self, at: int) -> bool:
        """Whether all that reads what the op has made was seen."""
        there = at in self._made and self._made[at].alive.expired()
        return there and not self._learnt[at] and at not in self._elsewhere

    def _reading(self, tensor: Any, is_written: bool) -> _Reading:
        """Of what it is known to be all or a part of."""
        maker = self._contents.filled_by(tensor)
        whole = _Reading(maker, 1.0, 1.0, None, False)
        made = self._made.get(maker)
        if made is None or made.memory != _memory(tensor) or made.size != tensor.element_size() or is_written:
            return whole
        sides = list(_sides(tensor, made.row))
        outer = [(many, step) for many, step in sides if step >= made.row]
        begin = tensor.storage_offset() % made.row
        end = begin + sum((many - 1) * step for many, step in sides if step < made.row)
        rows = 1.0
        if end < made.row and all(step % made.row == 0 for _, step in outer):
            rows = min(prod(many for many, _ in outer) * made.row / made.elements, 1.0)
        elements = prod(many for many, _ in sides) / made.elements
        part = None if elements == 1.0 else (tensor.storage_offset(), tuple(sides))
        return _Reading(maker, elements, rows, part, _row(tensor) % made.row == 0)

    def _picked(self, reading: _Reading, source: Any, given: dict[str, Any], made: Any) -> _Reading:
        """Of rows that an index chooses, if it does not choose within them."""
        inner = _inner(source)
        if inner is None or inner in _indexed(given, source.dim()):
            return reading
        share = made.numel() / max(source.numel(), 1)
        rows_too = reading.whole_rows and _row(made) == _row(source)
        elements, rows = reading.elements * share, min(reading.rows * share, 1.0)
        return _Reading(reading.maker, elements, rows, object(), reading.whole_rows, "elements", rows_too)


def _sides(tensor: Any, row: int) -> Iterator[tuple[int, int]]:
    """How many there are of what is so many elements apart, but for what lies in one place. Several rows are rows."""
    for many, step in zip(tensor.shape, tensor.stride(), strict=True):
        if step == 1 and many > row and many % row == 0:
            yield from ((one, far) for one, far in ((row, 1), (many // row, row)) if one > 1)
        elif many > 1 and step:
            yield int(many), int(step)


def _indexed(given: dict[str, Any], dimensions: int) -> set[int]:
    """Along which dimensions an index chooses: a mask has several."""
    if "dim" in given:
        return {given["dim"] % dimensions}
    found, at = set[int](), 0
    for one in given["indices"]:
        many = one.dim() if one is not None and str(one.dtype) in ("torch.bool", "torch.uint8") else 1
        found |= set(range(at, at + many)) if one is not None else set()
        at += many
    return found


def _along_rows(rows: Any, given: dict[str, Any], made: Any) -> bool:
    """Whether a row lies along the last dimension of both, and the op is along that alone."""
    last = rows.dim() - 1
    dims = given.get("dim", last)
    normalized = given.get("normalized_shape", [0])
    along = {dim % rows.dim() for dim in (dims if isinstance(dims, list | tuple) else [dims])}
    return along == {last} and len(normalized) == 1 and _inner(rows) == _inner(made) == last


def _inner(tensor: Any) -> int | None:
    """The dimension that is innermost in memory; None if none is."""
    found = [at for at, (many, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)) if step == 1 < many]
    return found[0] if len(found) == 1 else None


def _row(tensor: Any) -> int:
    inner = _inner(tensor)
    return 1 if inner is None else int(tensor.shape[inner])


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)
