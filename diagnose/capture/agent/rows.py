"""How many rows of tensors are zero or equal to others, and how many elements of matrices are zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import ceil
from typing import Any, ParamSpec

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


P = ParamSpec("P")


def or_nothing(count: Callable[P, int]) -> Callable[P, int]:
    """0 of tensors of a kind for which torch lacks what is needed to count: they must not cost what else is seen."""

    @wraps(count)
    def counted(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return count(*args, **kwargs)
        except RuntimeError:  # NotImplementedError is one.
            return 0

    return counted


class Rows:
    """Counts rows of tensors; those of equal keys once."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._alike: dict[object, int] = {}
        self._idle: dict[object, int] = {}

    @or_nothing
    def alike(self, tensor: Any, of_samples: bool, key: object) -> int:
        """Percent of its rows that are equal to one before, and not zero; 0 if it is too small."""
        found = self._alike.get((key, of_samples))
        if found is None:
            found = self._alike[key, of_samples] = self._counted_alike(tensor, of_samples)
        return found

    @or_nothing
    def idle(self, tensor: Any, of_samples: bool, key: object) -> int:
        """Percent of its rows that are zero; 0 if there are few, and not all are."""
        found = self._idle.get((key, of_samples))
        if found is None:
            found = self._idle[key, of_samples] = self._counted_idle(tensor, of_samples)
        return found

    @or_nothing
    def zeros(self, tensor: Any) -> int:
        """Thousandths of its elements that are zero; 0 if it has none."""
        many = int(tensor.numel())
        some = int(self._torch.count_nonzero(tensor))
        return (1000 * (many - some)) // max(many, 1)

    @or_nothing
    def subnormal(self, tensor: Any) -> int:
        """Thousandths of its elements that are so small that a CPU computes with them slowly; 0 on other devices."""
        torch = self._torch
        if not plain(tensor, torch) or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            return 0
        some = spread_over(tensor, MOST_NUMBERS)
        small = (some.abs() < torch.finfo(tensor.dtype).tiny) & (some != 0)
        return int(1000 * float(torch.count_nonzero(small)) / max(some.numel(), 1))

    @or_nothing
    def separable(self, filters: Any) -> bool:
        """Whether windows in two dimensions are products of columns and rows, and few of these do.

        That is one column for each result, or one row for each image that goes in. Not if most of a window is zero.
        """
        torch = self._torch
        small = plain(filters, torch) and filters.dim() == 4 and filters.numel() <= MOST_NUMBERS
        if not small or min(filters.shape[2:]) < LEAST_WINDOW:
            return False
        windows = filters.detach().cpu().double()
        flat = windows.flatten(2)
        most, at = flat.abs().max(2)
        used = most > 0
        if not used.any() or (2 * flat.count_nonzero(2)[used] < flat.shape[2]).any():
            return False
        pivot = torch.where(used, flat.gather(2, at[..., None])[..., 0], 1.0)
        width = windows.shape[3]
        columns = windows.gather(3, (at % width)[..., None, None].expand(*windows.shape[:3], 1))[..., 0]
        rows = windows.gather(2, (at // width)[..., None, None].expand(*windows.shape[:2], 1, width))[..., 0, :]
        product = columns[..., None] * rows[..., None, :] / pivot[..., None, None]
        if not ((windows - product).abs() <= SAME * most[..., None, None]).all():
            return False
        return self._are_one(columns, used, 1) or self._are_one(rows, used, 0)

    def _are_one(self, lines: Any, used: Any, along: int) -> bool:
        """Whether those that are used are multiples of one."""
        torch = self._torch
        largest = lines.gather(2, lines.abs().argmax(2, keepdim=True))
        scaled = lines / torch.where(used[..., None], largest, 1.0)
        high = torch.where(used[..., None], scaled, -torch.inf).amax(along)
        low = torch.where(used[..., None], scaled, torch.inf).amin(along)
        return bool((high - low <= SAME).all())

    def _counted_alike(self, tensor: Any, of_samples: bool) -> int:
        torch = self._torch
        if not plain(tensor, torch) or not tensor.is_floating_point() or tensor.numel() < LEAST_ELEMENTS:
            return 0
        rows = _rows(tensor, of_samples)[:MOST_ROWS]
        if rows.shape[1] < LEAST_WIDTH or rows.shape[0] < 2:
            return 0
        chosen = rows.any(1).nonzero()[:, 0]
        some = rows[:, :: ceil(rows.shape[1] / COLUMNS)]
        alike = self._alike_among(some, chosen)
        if alike and some.shape[1] < rows.shape[1]:  # What is mostly zero may differ elsewhere.
            alike = self._alike_among(rows, chosen)
        return 100 * alike // len(rows)

    def _alike_among(self, rows: Any, chosen: Any) -> int:
        """How many of the chosen rows are equal to one before."""
        torch = self._torch
        bits = getattr(torch, _INTEGERS[rows.element_size()])
        seeded = torch.Generator().manual_seed(0)
        factors = torch.randint(-(2**63), 2**63 - 1, (rows.shape[1],), generator=seeded).to(rows.device) | 1
        parts = chosen.split(max(MOST_NUMBERS // rows.shape[1], 1))
        keys = [(rows[part].contiguous().view(bits).to(torch.int64) * factors).sum(1) for part in parts]
        return len(chosen) - len(torch.unique(torch.cat(keys))) if keys else 0

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
