"""What a trace shows of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

SIZES = {"double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "bool": 1, "int": 4}


@dataclass(frozen=True)
class Tensor:
    """What a trace shows of a tensor."""

    shape: tuple[int, ...]
    dtype: str = "float"
    strides: tuple[int, ...] | None = None
    needs_grad: bool = True

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.numel * SIZES[self.dtype]

    @property
    def layout(self) -> tuple[int, ...]:
        """Its strides; contiguous unless given."""
        if self.strides is not None:
            return self.strides
        found, step = list[int](), 1
        for length in reversed(self.shape):
            found.insert(0, step)
            step *= length
        return tuple(found)

    def of(self, *shape: int, dtype: str | None = None) -> Tensor:
        """A contiguous one of another shape."""
        return replace(self, shape=shape, dtype=dtype or self.dtype, strides=None)

    def channels_last(self) -> Tensor:
        """The same in NHWC."""
        _, c, h, w = self.shape
        return replace(self, strides=(c * h * w, 1, w * c, c))

    @property
    def is_channels_last(self) -> bool:
        """Whether it is in NHWC."""
        return len(self.shape) == 4 and self.strides is not None and self.strides[1] == 1


Shown: TypeAlias = Tensor | Sequence[Tensor] | None


def shown(inputs: Sequence[Shown], values: Sequence[str]) -> dict[str, Any]:
    """The arguments of an op in a trace with shapes."""
    if not inputs:
        return {}
    dims, types, strides = list[Any](), list[str](), list[Any]()
    for input_ in inputs:
        if isinstance(input_, Tensor):
            dims.append(list(input_.shape))
            types.append(input_.dtype)
            strides.append(list(input_.layout))
        elif input_ is None:
            dims.append([])
            types.append("")
            strides.append([])
        else:
            dims.append([list(each.shape) for each in input_])
            types.append("TensorList")
            strides.append([list(each.layout) for each in input_])
    concrete = [""] * len(dims) + list(values)
    for _ in values:
        dims.append([])
        types.append("Scalar")
        strides.append([])
    return {"Input Dims": dims, "Input type": types, "Input Strides": strides, "Concrete Inputs": concrete}
