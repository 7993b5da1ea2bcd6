"""How many rows of tensors are zero or equal to others, and how many elements of matrices are zero."""

from __future__ import annotations

from math import ceil
from typing import Any

from .calls import plain, spread_over

LEAST_ELEMENTS = 1_000
"""Of a tensor whose equal rows are counted: smaller ones cost nothing (our choice)."""

LEAST_ROWS, LEAST_WIDTH = 8, 8
"""Fewer rows are not worth counting, and shorter ones are equal by chance (our choice)."""

COLUMNS = 64
"""Elements of a row, evenly taken, by which it is told whether rows are equal (our choice)."""

MOST_ROWS = 65_536
"""That are compared, the first ones, to bound memory (our choice)."""

MOST_NUMBERS = 1_000_000
"""Elements, evenly taken from memory, that are looked at for how small they are (our choice)."""

LEAST_WINDOW = 3
"""Of a filter, in each dimension: of a smaller one nothing is gained."""

SAME = 1e-5
"""Of the largest element, by which a window may differ from the product (our choice)."""

_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
_FACTORS = [pow(0x9E3779B97F4A7C15, k, 2**64) - 2**63 | 1 for k in range(1, COLUMNS + 1)]
"""Odd numbers of 64 bits by which elements are multiplied to tell rows apart; the first is from the golden ratio."""


class Rows:
    """Counts rows of tensors; those of equal keys once."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._alike: dict[object, int] = {}
        self._idle: dict[object, int] = {}

    def alike(self, tensor: Any, of_samples: bool, key: object) -> int:
        """Percent of its rows that are equal to one before, and not zero; 0 if it is too small."""
        found = self._alike.get((key, of_samples))
        if found is None:
            found = self._alike[key, of_samples] = self._counted_alike(tensor, of_samples)
        return found

    def idle(self, tensor: Any, of_samples: bool, key: object) -> int:
        """Percent of its rows that are zero; 0 if there are few, and not all are."""
        found = self._idle.get((key, of_samples))
        if found is None:
            found = self._idle[key, of_samples] = self._counted_idle(tensor, of_samples)
        return found

    def zeros(self, tensor: Any) -> int:
        """Thousandths of its elements that are zero; 0 if it has none."""
        many = int(tensor.numel())
        some = int(self._torch.count_nonzero(tensor))
        return (1000 * (many - some)) // max(many, 1)

    def subnormal(self, tensor: Any) -> int:
        """Thousandths of its elements that are so small that a CPU computes with them slowly; 0 on other devices."""
        torch = self._torch
        if not plain(tensor, torch) or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            return 0
        some = spread_over(tensor, MOST_NUMBERS)
        small = (some.abs() < torch.finfo(tensor.dtype).tiny) & (some != 0)
        return int(1000 * float(torch.count_nonzero(small)) / max(some.numel(), 1))

    def separable(self, filters: Any) -> bool:
        """Whether each of some windows in two dimensions is the product of a column and a row."""
        if not plain(filters, self._torch) or filters.dim() != 4 or min(filters.shape[2:]) < LEAST_WINDOW:
            return False
        windows = filters.flatten(0, 1).double()
        most, at = windows.flatten(1).abs().max(1)
        each = self._torch.arange(len(windows), device=windows.device)
        column, row = windows[each, :, at % filters.shape[3]], windows[each, at // filters.shape[3]]
        pivot = windows.flatten(1)[each, at]
        product = column[:, :, None] * row[:, None] / pivot[:, None, None]
        return bool(((windows - product).abs() <= SAME * most[:, None, None]).all())

    def _counted_alike(self, tensor: Any, of_samples: bool) -> int:
        torch = self._torch
        if not plain(tensor, torch) or not tensor.is_floating_point() or tensor.numel() < LEAST_ELEMENTS:
            return 0
        rows = _rows(tensor, of_samples)[:MOST_ROWS]
        if rows.shape[1] < LEAST_WIDTH or rows.shape[0] < 2:
            return 0
        some = rows[:, :: ceil(rows.shape[1] / COLUMNS)][rows.any(1)].contiguous()
        bits = some.view(getattr(torch, _INTEGERS[some.element_size()])).to(torch.int64)
        factors = torch.tensor(_FACTORS[: bits.shape[1]], device=bits.device)
        distinct = len(torch.unique((bits * factors).sum(1)))
        return 100 * (len(some) - distinct) // len(rows)

    def _counted_idle(self, tensor: Any, of_samples: bool) -> int:
        if not plain(tensor, self._torch) or not tensor.is_floating_point() or not tensor.numel():
            return 0
        rows = _rows(tensor, of_samples)
        percent = 100 * (len(rows) - int(rows.any(1).sum())) // len(rows)
        return percent if len(rows) >= LEAST_ROWS or (percent == 100 and tensor.numel() >= LEAST_ELEMENTS) else 0


def _rows(tensor: Any, of_samples: bool) -> Any:
    """As a matrix, if possible without a copy. Of images a row is a sample; of what was transposed, what was a row."""
    if tensor.dim() < 2:
        return tensor.reshape(-1, 1)
    if of_samples or tensor.dim() > 3:
        return _as_in_memory(tensor, 1).flatten(1)
    if tensor.stride(-1) != 1 and tensor.stride(-2) == 1:
        tensor = tensor.transpose(-1, -2)
    return _as_in_memory(tensor, 0, 1).flatten(0, -2)


def _as_in_memory(tensor: Any, first: int, last: int = 0) -> Any:
    """All dimensions but so many first and last ones in the order of memory: channels may go last."""
    inner = range(first, tensor.dim() - last)
    order = sorted(inner, key=lambda one: -tensor.stride(one))
    return tensor.permute(*range(first), *order, *range(tensor.dim() - last, tensor.dim()))
