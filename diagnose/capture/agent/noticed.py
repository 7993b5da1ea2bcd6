"""What the script makes and calls: models, loaders, optimizers; and attributes whose reading calls us.

Nothing of ours may run within torch.compile.
"""

import ast
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .alone import alone
from .threads import frames, is_library, line_of


def compiler_switch() -> Callable[[Any], Any]:
    """A function that sets what compiles frames that are entered from now on, and returns what did so before.

    Where torch.compile gives up on a function it still compiles what that calls: us as well, which takes seconds; and a
    profiler that starts in there crashes the process at random (torch 2.13). So within it nothing of ours may run, and
    to find that out no function of ours may be called: use this where the script's own frame has called us.
    """
    import torch

    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    switch: Callable[[Any], Any] = getattr(frames, "set_eval_frame", lambda compiler: None)

    def tried() -> Callable[[Any], Any]:
        switch(switch(None))
        return switch

    return alone("what torch.compile compiles", tried, default=lambda compiler: None)


class Noticed:
    """An attribute of objects: `on_read()`, if given, is called whenever it is read, but not in compiled code.

    Unlike a wrapper of the function that reads it, it adds no frame, so that torch's warnings point where they would.
    """

    def __init__(self, name: str, on_read: Callable[[], None] | None = None) -> None:
        self._name, self._on_read = name, on_read
        self._compile_with = None if on_read is None else compiler_switch()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Raises AttributeError if the object lacks it: wrappers of optimizers then get it from what they wrap."""
        if instance is None:
            return self
        if self._on_read is not None and self._compile_with is not None:
            compiler = self._compile_with(None)
            self._compile_with(compiler)
            if not compiler:
                self._on_read()
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
    """The module with most parameters of those that are part of no other; None if none has parameters."""
    modules = _modules()
    inner = {id(part) for module in modules for part in list(module._modules.values())}
    return largest_of(module for module in modules if id(module) not in inner)


def largest_of(modules: Iterable[Any]) -> Any:
    """The one with most elements in its parameters; None if none has parameters."""
    sizes = [(sum(part.numel() for part in list(module.parameters())), module) for module in modules]
    size, found = max(sizes, key=lambda pair: pair[0], default=(0, None))
    return found if size else None


def _modules() -> list[Any]:
    """All modules of torch.nn in the process that have been initialised."""
    nn: Any = sys.modules.get("torch.nn.modules.module")
    some = [] if nn is None else gc.get_objects()
    return [one for one in some if issubclass(type(one), nn.Module) and "_modules" in vars(one)]


MOST_TRAINED = 8  # Modules that are taken for what is trained, wrappers with what they wrap (chosen).


def trained(optimizers: Iterable[Any]) -> list[Any]:
    """Per optimizer the modules that hold most of what it updates: the model, and what wraps it. Outermost first.
    Modules within one that torch.compile wraps are left out: calls of that wrapper stand for theirs."""
    modules, wrapper = _modules(), getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    compiled = {id(one) for wrapped in modules if isinstance(wrapped, wrapper) for one in wrapped._orig_mod.modules()}
    sizes = [({id(some): some.numel() for some in one.parameters()}, one) for one in modules if id(one) not in compiled]
    inner = {id(part) for module in modules for part in module._modules.values()}
    found: dict[int, Any] = {}
    for optimizer in optimizers:
        wanted = {id(some) for group in optimizer.param_groups for some in group["params"]}
        held = [(sum(size for key, size in known.items() if key in wanted), one) for known, one in sizes]
        most = max((size for size, _ in held), default=0)
        found |= {id(one): one for size, one in held if size and size == most}
    return sorted(found.values(), key=lambda one: id(one) in inner)[:MOST_TRAINED]


def when_called(model: Any, act: Callable[[], None], after: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Have `act()` called before each call of the model, and `after()` after it, until the returned function is called.

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
    """From now on have `act()` called before the model is put into training mode; nothing ends that.

    A class may have a `train` of its own with other arguments.
    """
    import torch

    kind, compile_with, wanted = type(model), compiler_switch(), weakref.ref(model)
    original = kind.train

    @functools.wraps(original)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        mode = args[0] if args else kwargs.get("mode", True)
        if mode is True and not torch.compiler.is_compiling() and self is wanted():
            compiler = compile_with(None)
            compile_with(compiler)
            if not compiler:
                act()
        return original(self, *args, **kwargs)

    kind.train = train


LONGEST_CALL = 400  # Characters of a call that are kept (chosen).


class Place(NamedTuple):
    """A line of the user's own that runs."""

    file: str
    line: int
    function: str


_places: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()


def note(made: Any) -> None:
    """Remember the user's innermost line that runs now, as where this object is being made."""
    if (place := running_line()) is not None:
        _places[made] = place


def running_line() -> Place | None:
    """The user's innermost line that runs now, in this thread; None if all that runs are libraries."""
    own = (frame for frame in frames(sys._getframe(1)) if is_users(frame.f_code.co_filename))
    return next((place_of(frame) for frame in own), None)


def place_of(frame: FrameType) -> Place:
    """The line at which a frame is."""
    return Place(frame.f_code.co_filename, line_of(frame), frame.f_code.co_name)


def begins(function: object) -> dict[str, object] | None:
    """Where a function of the user's own begins, by the fields of `Made` in the manifest; None for others."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not is_users(code.co_filename):
        return None
    return Place(code.co_filename, code.co_firstlineno, code.co_name)._asdict()


def where(made: Any) -> dict[str, object] | None:
    """Where an object that `note` has seen was made, by the fields of `Made`; None for others."""
    place = _places.get(made)
    return None if place is None else {**place._asdict(), "call": call_at(place, type(made).__name__)}


def call_at(place: Place, name: str) -> str:
    """The text, in one line, of the call of that name at this place; empty if there is not exactly one.

    Texts in it that are more than a word are left out, as they may name what is private.
    """
    try:
        tree = ast.parse(Path(place.file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ""
    names = (name, "DDP") if name == "DistributedDataParallel" else (name,)  # As scripts import it.
    around = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.Call) and one.lineno <= place.line <= (one.end_lineno or 0) and _name(one.func) in names
    ]
    text = ast.unparse(_Discreet().visit(around[0])) if len(around) == 1 else ""
    return text if len(text) <= LONGEST_CALL else ""


class _Discreet(ast.NodeTransformer):
    """Puts `...` in place of texts that are more than a word, bytes, and f-strings."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        hidden = isinstance(node.value, str | bytes) and not (isinstance(node.value, str) and node.value.isidentifier())
        return ast.Constant(...) if hidden else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.Constant(...)


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def is_users(file: str) -> bool:
    """Whether a file is the user's own."""
    return not (file.startswith("<") or is_library(file))
