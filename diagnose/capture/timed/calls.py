"""Tensors as recorded and as a change leaves them: shapes, types, strides; never the recorded values; and calls
of ATen's ops with them, by their schemas.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from msgspec import Struct

from diagnose.capture.agent.recordings import free_bytes

LONGEST = 120  # Characters of an error.

# Arguments whose value changes little of what an op takes; of others it is not known.
_SCALARS: dict[str, object] = {"alpha": 1, "beta": 1, "dim": -1, "eps": 1e-5, "keepdim": False, "half_to_float": False}

ALIGNED, ROUND = 8, 64  # Sizes that are no multiple of the first are rounded up to one of the second.
WORKSPACE = 2  # Times the memory of what it takes and gives that an op is thought to need at most (chosen).
STRETCHED = 4  # Times as much memory as it has elements may lie under a strided tensor (chosen).
_KNOWN = {
    **{"double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"},
    **{"long int": "int64", "int": "int32", "short int": "int16", "bool": "bool"},
    **{"unsigned char": "uint8", "signed char": "int8"},
}
Call = Callable[[], object]
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
        """Elements of the memory under it, gaps between strides included."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return last + 1 if math.prod(self.shape) else 0

    @property
    def bytes(self) -> int:
        """Bytes of the memory under it, gaps between strides included."""
        return self.stored * int(self.dtype.itemsize)


def inputs(one: dict[str, str]) -> list[Any]:
    """The recorded inputs of an op, in order. Raises CannotTime."""
    shapes, dtypes, strides, scalars = (
        json.loads(one[name]) if one.get(name) else [] for name in ("shapes", "dtypes", "strides", "scalars")
    )
    columns = ((*some, *[""] * len(shapes))[: len(shapes)] for some in (dtypes, strides, scalars))
    return [_input(*row) for row in zip(shapes, *columns, strict=True)]


def _input(shape: Any, dtype: str, strides: Any, scalar: str) -> Any:
    """A recorded input: a tensor without values, a list of them, or the text of what is no tensor."""
    if isinstance(shape, list) and shape and isinstance(shape[0], list):
        return [_input(some, "float", "", "") for some in shape]
    if dtype not in _KNOWN:
        return str(scalar)
    return laid_out(tuple(shape), getattr(torch, _KNOWN[dtype]), tuple(strides or ()))


def laid_out(shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] = ()) -> Tensor:
    """A tensor of that shape with these strides if they fit, else contiguous. Raises CannotTime."""
    if min(shape, default=0) < 0 or math.prod(shape) >= 1 << 60:
        raise CannotTime("its sizes are those of no tensor")
    plain = Tensor(shape, dtype, packed(shape, sorted(range(len(shape)), reverse=True)))
    if len(strides) != len(shape) or min(strides, default=0) < 0:
        return plain
    strided = Tensor(shape, dtype, strides)
    return strided if strided.stored <= STRETCHED * max(math.prod(shape), 1) else plain


def packed(shape: tuple[int, ...], inner_first: list[int]) -> tuple[int, ...]:
    """Strides without gaps; `inner_first`: the dimensions in their order in memory, the fastest first."""
    strides, step = [0] * len(shape), 1
    for at in inner_first:
        strides[at], step = step, step * max(shape[at], 1)
    return tuple(strides)


def narrowed(some: Any, words: list[str]) -> Any:
    """An input in the type that the change's words name, if any does and the input has floating-point numbers."""
    to = next((getattr(torch, _AFTER[word]) for word in words if word in _AFTER), None)
    if isinstance(some, list):
        return [narrowed(one, words) for one in some]
    if to is None or not isinstance(some, Tensor) or not some.dtype.is_floating_point:
        return some
    return Tensor(some.shape, to, some.strides)


def padded(given: list[Any]) -> list[Any]:
    """Inputs of a matrix product, inner and output sizes rounded up; rows stay unless they are one of these."""
    matrices = [one.shape for one in given if isinstance(one, Tensor) and len(one.shape) >= 2]
    if len(matrices) < 2:
        raise CannotTime("it is no product of two matrices")
    inner = {size for size in (*matrices[-2][-1:], *matrices[-1][-2:]) if size % ALIGNED}

    def rounded(tensor: Any) -> Any:
        """The tensor with its `inner` sizes rounded up to a multiple of ROUND, in the same order in memory."""
        if not isinstance(tensor, Tensor):
            return tensor
        shape = tuple(-(-size // ROUND) * ROUND if size in inner else size for size in tensor.shape)
        order = sorted(range(len(shape)), key=lambda at: (tensor.strides[at], -at))
        steps = (step if old else 0 for old, step in zip(tensor.strides, packed(shape, order), strict=True))
        return Tensor(shape, tensor.dtype, tuple(steps))

    return [rounded(one) for one in given]


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among these arguments, and in lists among them."""
    every = (one for value in values for one in (value if isinstance(value, list) else [value]))
    return [one for one in every if isinstance(one, Tensor)]


def filled(device: torch.device, one: Tensor, below: int, signs: bool) -> Any:
    """A real tensor: of integers less than `below`, of floats from 0.5 to 1.5, or of floats 1 and -1 (`signs`); none
    near 0, as subnormal numbers take longer."""
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
    """Raise CannotTime if `needed` bytes, with room to work, are over half of the free memory."""
    room = (int(torch.cuda.mem_get_info()[0]) if device.type == "cuda" else free_bytes()) // 2
    if needed * WORKSPACE > room:
        raise CannotTime(f"it may need {needed * WORKSPACE / 1e9:.1f} GB, and {room / 1e9:.1f} GB may be taken")


def sizes(given: list[Any]) -> int:
    """Bytes of all tensors."""
    return sum(one.bytes for one in tensors_of(given))


def first_line(error: Exception) -> str:
    """What an error says, in few characters."""
    return (str(error).strip() or "no reason given").splitlines()[0][:LONGEST]


def bound(device: torch.device, op: str, given: list[Any]) -> Call:
    """A call of an op of ATen by its schema. Raises CannotTime."""
    if device.type == "cuda" and "attention" in op and op.endswith("backward"):
        raise CannotTime("its random state was not recorded")
    whys = list[str]()
    for overload in overloads(op, len(given)):
        try:
            arguments = fitted(overload, given)
            ask(device, sizes(given) + _result_bytes(op, overload, arguments))
            call = partial(overload, **made(device, op, arguments))
            call()
        except CannotTime as error:
            whys.append(str(error))
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
            whys.append(first_line(error))
        else:
            return call
    raise CannotTime(whys[0] if whys else "torch has no such op")


def overloads(op: str, count: int) -> Iterator[Any]:
    """The overloads of an op, such as aten::add.Tensor: those that take so many inputs, if there are such."""
    space, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, space, None), name, None) if space == "aten" and name.isidentifier() else None
    names = packet.overloads() if packet is not None else ()
    found = [getattr(packet, one) for one in names if not one.endswith("out") and "out" not in one.split("_")]
    alike = [one for one in found if len(one._schema.arguments) == count]
    yield from alike or found


def fitted(overload: Any, given: list[Any]) -> dict[str, Any]:
    """The arguments of an overload by what was recorded, in its order. Raises CannotTime where one is not known."""
    some = overload._schema.arguments
    recorded = [*given, *[""] * len(some)]
    found = dict[str, Any]()
    for argument, value, later in zip(some, recorded, range(1, len(recorded)), strict=False):
        kind = str(argument.type)
        if "Tensor" in kind:
            missing = not value or isinstance(value, str)
            if (missing and "Optional" not in kind) or (isinstance(value, list) and "List" not in kind):
                raise CannotTime(f"its {argument.name} was not recorded")
            found[argument.name] = None if missing else value
        else:
            found[argument.name] = number(argument, value, [one for one in given[later:] if one], given)
    return found


def number(argument: Any, value: Any, behind: list[Any], given: list[Any]) -> Any:
    """The value of an argument that is no tensor: as recorded, else its default or a usual one. Raises CannotTime."""
    kind, name = str(argument.type), argument.name
    if isinstance(value, Tensor | list):
        if isinstance(value, list) or value.shape:
            raise CannotTime(f"its {name} is a tensor")
        value = "1.0" if kind in ("number", "float") else ""
    if name == "input_dtype":
        return next((one.dtype for one in given if isinstance(one, Tensor)), torch.float32)
    if value and name != "dtype":
        return read(value, kind, name)
    if argument.has_default_value():
        return argument.default_value
    weight = next((one for one in behind if isinstance(one, Tensor)), None)
    if name == "normalized_shape" and weight is not None:
        return list(weight.shape)
    if kind.startswith("Optional"):
        return None
    if name not in _SCALARS:
        raise CannotTime(f"its {name} was not recorded")
    return _SCALARS[name]


def read(text: str, kind: str, name: str) -> Any:
    """A number, a truth or a list of them, as torch writes it. Raises CannotTime."""
    try:
        value = json.loads(re.sub(r"(?<=\d)\.(?!\d)", ".0", text.replace("True", "true").replace("False", "false")))
    except ValueError:
        raise CannotTime(f"its {name} is {text[:LONGEST]}") from None
    if "List" in kind:
        return value if isinstance(value, list) else [value]
    if isinstance(value, list):
        raise CannotTime(f"its {name} is {text[:LONGEST]}")
    if "float" in kind:
        return float(value)
    return bool(value) if "bool" in kind else value


def made(device: torch.device, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments with numbers in their tensors: what works in place gets 1 and -1, so that nothing grows or vanishes."""
    tensors = tensors_of(arguments.values())
    below = _below(op, tensors)

    def one(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], Tensor):
            return [one(some) for some in value]
        if not isinstance(value, Tensor):
            return value
        return filled(device, value, below, signs=op.endswith("_") and value is not tensors[0])

    return {name: one(value) for name, value in arguments.items()}


def _below(op: str, tensors: list[Tensor]) -> int:
    """The bound of index values: rows of an embedding's table, else the smallest size of any float tensor."""
    floats = [tensor.shape for tensor in tensors if tensor.dtype.is_floating_point and tensor.shape]
    if op == "aten::embedding" and floats:
        return floats[0][0]
    return min((min(shape) for shape in floats), default=2)


def _result_bytes(op: str, overload: Any, arguments: dict[str, Any]) -> int:
    """Bytes of a call's results, computed on the meta device; where that fails, bytes of its largest input."""
    try:
        found = overload(**made(torch.device("meta"), op, arguments))
    except Exception:  # Not every op says beforehand what it gives.
        return max((one.bytes for one in tensors_of(arguments.values())), default=0)
    given = found if isinstance(found, tuple | list) else [found]
    return sum(one.numel() * int(one.dtype.itemsize) for one in given if isinstance(one, torch.Tensor))
