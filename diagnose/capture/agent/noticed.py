"""What the script makes and calls: models, loaders, optimizers, and attributes that we are told of."""

import ast
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .compiled import compiler_switch
from .threads import is_library, line_of


class Noticed:
    """An attribute of objects, of whose readings we are told.

    Unlike a wrapper of the function that reads it, it adds no frame, so that torch's warnings point where they would.
    """

    def __init__(self, name: str, told: Callable[[], None]) -> None:
        self._name, self._told, self._compile_with = name, told, compiler_switch()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        compiler = self._compile_with(None)
        self._compile_with(compiler)
        if not compiler:
            self._told()
        try:
            return instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._name] = value

    def __delete__(self, instance: Any) -> None:
        try:
            del instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None


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


LONGEST_CALL = 400  # Characters of a call that are kept (our choice).
SHORT_NAMES = {"DistributedDataParallel": ("DDP",)}  # Names by which scripts import them, besides their own.


class Place(NamedTuple):
    """A line of the user's own that runs."""

    file: str
    line: int
    function: str


_places: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()


def note(made: Any) -> None:
    """Something is being made: remember by which line of the user's."""
    if (place := running()) is not None:
        _places[made] = place


def running() -> Place | None:
    """The line of the user's that runs now; None if all are of libraries."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else Place(frame.f_code.co_filename, line_of(frame), frame.f_code.co_name)


def begins(function: object) -> dict[str, object] | None:
    """Where a function of the user's own begins, as `Made` in the manifest; None of others."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not is_users(code.co_filename):
        return None
    return Place(code.co_filename, code.co_firstlineno, code.co_name)._asdict()


def where(made: Any) -> dict[str, object] | None:
    """As `Made` in the manifest; None if that is not known."""
    place = _places.get(made)
    return None if place is None else {**place._asdict(), "call": call_at(place, type(made).__name__)}


def call_at(place: Place, name: str) -> str:
    """The call of what has that name at a line of a file, in one line; empty if there is not exactly one.

    Texts in it that are more than a word are left out, as they may name what is private.
    """
    try:
        tree = ast.parse(Path(place.file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ""
    names = (name, *SHORT_NAMES.get(name, ()))
    around = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.Call) and one.lineno <= place.line <= (one.end_lineno or 0) and _name(one.func) in names
    ]
    text = ast.unparse(_Discreet().visit(around[0])) if len(around) == 1 else ""
    return text if len(text) <= LONGEST_CALL else ""


class _Discreet(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        told = isinstance(node.value, str | bytes) and not (isinstance(node.value, str) and node.value.isidentifier())
        return ast.Constant(...) if told else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.Constant(...)


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def is_users(file: str) -> bool:
    """Whether a file is the user's own."""
    return not (file.startswith("<") or is_library(file))
