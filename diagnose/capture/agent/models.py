"""Being told when the script calls its model, where nothing else tells of its steps."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

from .compiled import compiler_switch


def largest() -> Any:
    """The module with most parameters of those that are part of no other; None without any with parameters."""
    nn = sys.modules.get("torch.nn.modules.module")
    if nn is None:
        return None
    modules = [
        object_ for object_ in gc.get_objects() if issubclass(type(object_), nn.Module) and "_modules" in vars(object_)
    ]
    inner = {id(part) for module in modules for part in list(module._modules.values())}
    sizes = [
        (sum(part.numel() for part in list(module.parameters())), module)
        for module in modules
        if id(module) not in inner
    ]
    size, found = max(sizes, key=lambda pair: pair[0], default=(0, None))
    return found if size else None


def when_called(model: Any, act: Callable[[], None]) -> Callable[[], None]:
    """Have `act()` called before each call of the model from now on; what this returns ends that.

    It takes the place of `__call__` in the model's class: a hook of its own would be saved with the model.
    """
    import torch

    kind, own, compile_with = type(model), vars(type(model)).get("__call__"), compiler_switch()
    original, wanted = kind.__call__, weakref.ref(model)

    @functools.wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is wanted() and not torch.compiler.is_compiling():
            compiler = compile_with(None)
            compile_with(compiler)
            if not compiler:
                act()
        return original(self, *args, **kwargs)

    def leave() -> None:
        if vars(kind).get("__call__") is called:
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own

    kind.__call__ = called
    return leave
