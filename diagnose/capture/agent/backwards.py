"""Being told when backward passes begin and end, and of what they go back through: only while someone listens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .alone import capturing, failed
from .compiled import compiler_switch
from .imports import when_imported

Listener = Callable[[list[Any]], None]
"""Is given the tensors that a pass begins at. What it raises is noted, and the script does not hear of it."""

_listeners: list[Listener] = []
_at_ends: list[Callable[[], None]] = []
_running = False  # In a pass: what begins within it is part of it, as where activations are checkpointed.
_unhook: Callable[[], None] | None = None  # Puts torch's own function back; None while it is there.


def listen(listener: Listener) -> None:
    """Have it called from now on."""
    _listeners.append(listener)
    when_imported("torch.autograd", _hook)


def listen_to_ends(listener: Callable[[], None]) -> None:
    """Have it called after each pass from now on; what ends the process gets through to the script."""
    _at_ends.append(listener)
    when_imported("torch.autograd", _hook)


def leave(listener: Callable[..., None]) -> None:
    """Call it no more; it may have left before."""
    if listener in _listeners:
        _listeners.remove(listener)
    if listener in _at_ends:
        _at_ends.remove(listener)
    if not _listeners and not _at_ends and _unhook is not None:
        _unhook()


def forget_all() -> None:
    """Let all leave: those of a process that this one was forked from, too."""
    global _running
    _running = False
    for listener in list(_listeners):
        leave(listener)
    for at_end in list(_at_ends):
        leave(at_end)


def _hook(module: Any) -> None:
    global _unhook
    if _unhook is None and (_listeners or _at_ends):
        original = module.backward
        told = module.backward = _told(original)
        _unhook = functools.partial(_put_back, module, told, original)


def _put_back(module: Any, told: object, original: object) -> None:
    """Unless someone else has put another function there, which calls ours."""
    global _unhook
    if module.backward is told:
        module.backward, _unhook = original, None


def _told(original: Any) -> Callable[..., Any]:
    """`torch.autograd.backward`, which tells us. Its frame is in stacks: it is there only while someone listens."""
    import torch  # The script is importing it: it is there, if not yet whole.

    compile_with = compiler_switch()

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        global _running
        if torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        compiler = compile_with(None)
        compile_with(compiler)
        if compiler:
            return original(tensors, *args, **kwargs)
        told = not capturing()
        if told:
            _tell(_listeners, list(tensors) if isinstance(tensors, (tuple, list)) else [tensors])
        outermost, _running = not _running, True
        try:
            result = original(tensors, *args, **kwargs)
        finally:
            _running = not outermost
        if outermost and told:
            _tell(_at_ends)
        return result

    # What torch.compile leaves alone it knows by the file, which is torch's own.
    backward.__code__ = backward.__code__.replace(co_filename=original.__code__.co_filename)
    return functools.update_wrapper(backward, original)


def _tell(listeners: list[Any], *given: Any) -> None:
    try:
        for listener in list(listeners):
            listener(*given)
    except Exception as error:
        failed("backward passes", error)
