"""Tensors as they were recorded and as a change leaves them: shapes, types, strides; never the recorded values."""

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct

ALIGNED, ROUND = 8, 64  # Sizes that are no multiple of the first are rounded up to one of the second.
WORKSPACE = 2  # Times the memory of what it takes and gives that an op is thought to need at most (our choice).
STRETCHED = 4  # Times as much memory as it has elements may lie under a strided tensor (our choice).

_FLOATING = {"double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_OTHER = {
    **{"long int": "int64", "int": "int32", "short int": "int16", "bool": "bool"},
    **{"unsigned char": "uint8", "signed char": "int8"},
}
_AFTER = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class CannotTime(Exception):
    """Why an op is not timed, in a few words."""


class Tensor(Struct, frozen=True):
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...]

    @property
    def stored(self) -> int:
        """Elements of the memory under it."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return last + 1 if math.prod(self.shape) else 0

    @property
    def bytes(self) -> int:
        """Of its memory."""
        return self.stored * int(self.dtype.itemsize)


def inputs(one: dict[str, str]) -> list[Any]:
    """What an op took. Raises CannotTime."""
    shapes, dtypes, strides, scalars = (
        json.loads(one[name]) if one.get(name) else [] for name in ("shapes", "dtypes", "strides", "scalars")
    )
    many = len(shapes)
    padding = [""] * many
    columns = ((*some, *padding)[:many] for some in (dtypes, strides, scalars))
    return [_input(*row) for row in zip(shapes, *columns, strict=True)]


def _input(shape: Any, dtype: str, strides: Any, scalar: str) -> Any:
    if isinstance(shape, list) and shape and isinstance(shape[0], list):
        return [_input(some, "float", "", "") for some in shape]
    known = {**_FLOATING, **_OTHER}.get(dtype)
    if known is None:
        return str(scalar)
    return laid_out(tuple(shape), getattr(torch, known), tuple(strides or ()))


def laid_out(shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] = ()) -> Tensor:
    """With the strides if they fit, else without gaps. Raises CannotTime."""
    if min(shape, default=0) < 0 or math.prod(shape) >= 1 << 60:
        raise CannotTime("its sizes are those of no tensor")
    plain = Tensor(shape, dtype, packed(shape, sorted(range(len(shape)), reverse=True)))
    if len(strides) != len(shape) or min(strides, default=0) < 0:
        return plain
    found = Tensor(shape, dtype, strides)
    return found if found.stored <= STRETCHED * max(math.prod(shape), 1) else plain


def packed(shape: tuple[int, ...], inner_first: list[int]) -> tuple[int, ...]:
    """Strides without gaps, of dimensions in this order."""
    strides, step = [0] * len(shape), 1
    for at in inner_first:
        strides[at], step = step, step * max(shape[at], 1)
    return tuple(strides)


def narrowed(some: Any, words: list[str]) -> Any:
    """An input in the type that a change asks for."""
    to = next((getattr(torch, _AFTER[word]) for word in words if word in _AFTER), None)
    if isinstance(some, list):
        return [narrowed(one, words) for one in some]
    if to is None or not isinstance(some, Tensor) or not some.dtype.is_floating_point:
        return some
    return Tensor(some.shape, to, some.strides)


def padded(given: list[Any]) -> list[Any]:
    """Of a product, inner sizes rounded up; the number of rows stays, unless it is one of these."""
    matrices = [one.shape for one in given if isinstance(one, Tensor) and len(one.shape) >= 2]
    if len(matrices) < 2:
        raise CannotTime("it is no product of two matrices")
    inner = {size for size in (*matrices[-2][-1:], *matrices[-1][-2:]) if size % ALIGNED}

    def rounded(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        shape = tuple(-(-size // ROUND) * ROUND if size in inner else size for size in one.shape)
        order = sorted(range(len(shape)), key=lambda at: (one.strides[at], -at))
        steps = (step if old else 0 for old, step in zip(one.strides, packed(shape, order), strict=True))
        return Tensor(shape, one.dtype, tuple(steps))

    return [rounded(one) for one in given]


def filled_by(arguments: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among arguments."""
    for value in arguments.values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Tensor):
                yield one


def filled(device: torch.device, one: Tensor, below: int, signs: bool) -> Any:
    """A tensor with numbers of a usual size: none near 0, as subnormal ones take longer."""
    python = not one.shape and one.dtype in (torch.float64, torch.int64)  # So torch writes numbers of Python.
    where, size = "cpu" if python else device, max(one.stored, 1)
    if one.dtype is torch.bool:
        memory = torch.rand(size, device=where) < 0.5
    elif not one.dtype.is_floating_point:
        most = max(min(below, 127) if one.dtype.itemsize == 1 else below, 1)
        memory = torch.randint(0, most, (size,), dtype=one.dtype, device=where)
    elif signs:
        memory = (torch.randint(0, 2, (size,), device=where) * 2 - 1).to(one.dtype)
    else:
        memory = torch.rand(size, device=where).add_(0.5).to(one.dtype)
    return memory[: one.stored].as_strided(one.shape, one.strides)


def ask(device: torch.device, needed: int) -> None:
    """Raises CannotTime where that much, with what it works in, is over half of the memory that is free."""
    room = free_bytes(device) // 2
    if needed * WORKSPACE > room:
        raise CannotTime(f"it may need {needed * WORKSPACE / 1e9:.1f} GB, and {room / 1e9:.1f} GB may be taken")


def sizes(given: list[Any]) -> int:
    """Bytes of all tensors."""
    return sum(one.bytes for one in filled_by({str(at): value for at, value in enumerate(given)}))


def free_bytes(device: Any) -> int:
    """Memory that is free now, of the machine and of the group of processes that this one may be held to."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    found = list[int]()
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")))
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        limit, used = (int((group / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        kept = (group / "memory.stat").read_text(encoding="ascii").split()
        found.append(limit - used + int(kept[kept.index("inactive_file") + 1]))
    return max(min(found), 0) if found else 2 << 30
