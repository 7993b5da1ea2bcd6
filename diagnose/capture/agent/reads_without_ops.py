"""Ways to what a tensor holds that call no op: of NumPy, lists, files, and other libraries."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

WAYS = ("numpy", "tolist", "data_ptr", "__dlpack__", "__reduce_ex__")
"""Methods of tensors. NumPy's own functions call `numpy`."""


def watched(torch: Any, tell: Callable[[Any], object]) -> Callable[[], None]:
    """Tell of each tensor that is read in such a way, before it is; to what ends that."""
    before = {name: vars(torch.Tensor).get(name) for name in WAYS}

    def leave() -> None:
        for name, method in before.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)

    for name in WAYS:
        setattr(torch.Tensor, name, _telling(getattr(torch.Tensor, name), tell))
    return leave


def _telling(method: Callable[..., Any], tell: Callable[[Any], object]) -> Callable[..., Any]:
    @wraps(method)
    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        tell(tensor)
        return method(tensor, *args, **kwargs)

    return read
