"""Being told when the script calls its model, where nothing else tells of its steps."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable
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


MOST_TRAINED = 8  # Modules that are taken for what is trained, wrappers with what they wrap (our choice).


def trained(optimizers: Iterable[Any]) -> list[Any]:
    """Modules that hold all that an optimizer updates of any: the model, and what wraps it. Outermost first.

    What torch.compile has compiled is left alone: calls of its wrapper tell as much.
    """
    nn, frames = sys.modules.get("torch.nn.modules.module"), sys.modules.get("torch._dynamo.eval_frame")
    if nn is None:
        return []
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_modules" in vars(one)]
    wrapper = getattr(frames, "OptimizedModule", ())
    compiled = {id(one) for wrapped in modules if isinstance(wrapped, wrapper) for one in wrapped._orig_mod.modules()}
    sizes = [({id(some): some.numel() for some in one.parameters()}, one) for one in modules if id(one) not in compiled]
    inner = {id(part) for module in modules for part in module._modules.values()}
    found: dict[int, Any] = {}
    for optimizer in optimizers:
        wanted = {id(some) for group in optimizer.param_groups for some in group["params"]}
        held = [(sum(size for key, size in known.items() if key in wanted), one) for known, one in sizes]
        most = max((size for size, _ in held), default=0)
        for size, one in held:
            if size and size == most:
                found[id(one)] = one
    return sorted(found.values(), key=lambda one: id(one) in inner)[:MOST_TRAINED]


def when_called(model: Any, act: Callable[[], None], after: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Have `act()` called before each call of the model from now on, and `after()` behind it; what this returns ends
    that.

    It takes the place of `__call__` in the model's class: a hook of its own would be saved with the model.
    """
    import torch

    kind, own, compile_with = type(model), vars(type(model)).get("__call__"), compiler_switch()
    original, wanted = kind.__call__, weakref.ref(model)

    @functools.wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or self is not wanted():
            return original(self, *args, **kwargs)
        compiler = compile_with(None)
        compile_with(compiler)
        if compiler:
            return original(self, *args, **kwargs)
        act()
        try:
            return original(self, *args, **kwargs)
        finally:
            after()

    def leave() -> None:
        if vars(kind).get("__call__") is called:
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own

    kind.__call__ = called
    return leave


def when_trained(model: Any, act: Callable[[], None]) -> None:
    """Have `act()` called before the model is put into training mode from now on."""
    import torch

    kind, compile_with, wanted = type(model), compiler_switch(), weakref.ref(model)
    original = kind.train

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if mode and not torch.compiler.is_compiling() and self is wanted():
            compiler = compile_with(None)
            compile_with(compiler)
            if not compiler:
                act()
        return original(self, mode)

    kind.train = train
