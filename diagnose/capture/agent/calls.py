"""What torch tells of an op, and of the tensors that it takes and makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

SAMPLED = 64  # Elements of a result that are compared where two should be equal (our choice).

UNFILLED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
"""Ops whose results hold anything."""


OTHER_MEMORY = ("resize_", "resize_as_", "set_")
"""Ops that change which memory a tensor has, and not only how it looks at that."""


class Op(NamedTuple):
    """What is the same for all calls of an op."""

    name: str
    writes: frozenset[str]  # Names of the arguments that it writes to.
    arguments: tuple[str, ...]
    comparable: bool  # Whether equal inputs give equal results.
    turns: bool  # Whether it changes how a tensor looks at its memory.
    computes: bool
    """Whether it looks at the values of what it takes: not views of memory, nor what is only made as large."""


def described(func: Any, torch: Any) -> Op:
    """An overload of an op."""
    schema = func._schema
    space, _, name = schema.name.partition("::")
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    turns = torch.Tag.inplace_view in func.tags and name not in OTHER_MEMORY
    views = turns or any(argument.alias_info and not argument.alias_info.is_write for argument in schema.arguments)
    return Op(
        name=schema.name,
        arguments=tuple(argument.name for argument in schema.arguments),
        writes=frozenset() if turns else _written(schema),
        comparable=space == "aten" and name not in UNFILLED and not seeded,
        turns=turns,
        computes=not views and not name.endswith("_like") and not name.startswith("new_"),
    )


def _written(schema: Any) -> frozenset[str]:
    return frozenset(
        argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write
    )


def tensors_in(values: list[Any], torch: Any) -> Iterator[Any]:
    """All tensors in nested lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(list(value), torch)


def plain(tensor: Any, torch: Any) -> bool:
    """Whether it has memory of its own, and is not of a class that computes in its own way."""
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    special = own or tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta" or tensor._is_zerotensor()
    return tensor.layout is torch.strided and not special


def is_one_number(tensor: Any) -> bool:
    """Whether it is all that is in its memory, and of the host: such tensors are made of Python's numbers."""
    alone = tensor.numel() == 1 and tensor.untyped_storage().nbytes() == tensor.element_size()
    return bool(alone and tensor.device.type == "cpu")


def some_of(tensor: Any) -> list[Any]:
    """Elements of a tensor, evenly taken from its memory; none of kinds that torch cannot show."""
    try:
        if not tensor.numel():
            return []
        extent = 1 + sum((many - 1) * stride for many, stride in zip(tensor.shape, tensor.stride(), strict=True))
        memory = tensor.as_strided((extent,), (1,), tensor.storage_offset())
        return list(memory[:: max(extent // SAMPLED, 1)].tolist())
    except RuntimeError:
        return []
