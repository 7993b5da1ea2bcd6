"""Being told when backward passes begin, and of what they go back through: only while someone listens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .imports import failures, when_imported
from .steps import compiler_switch

Listener = Callable[[list[Any]], None]
"""Is given the tensors that a pass begins at. What it raises is noted, and the script does not hear of it."""

_listeners: list[Listener] = []
_unhook: Callable[[], None] | None = None
"""Puts torch's own function back; None while it is there."""


def listen(listener: Listener) -> None:
    """Have it called from now on."""
    _listeners.append(listener)
    if len(_listeners) == 1:
        when_imported("torch.autograd", _hook)


def leave(listener: Listener) -> None:
    """Call it no more; it may have left before."""
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners and _unhook is not None:
        _unhook()


def forget_all() -> None:
    """Let all leave: those of a process that this one was forked from, too."""
    for listener in list(_listeners):
        leave(listener)


def _hook(module: Any) -> None:
    global _unhook
    if _unhook is None and _listeners:
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
        if torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        compiler = compile_with(None)
        compile_with(compiler)
        if not compiler:
            _tell(tensors)
        return original(tensors, *args, **kwargs)

    # What torch.compile leaves alone it knows by the file, which is torch's own.
    backward.__code__ = backward.__code__.replace(co_filename=original.__code__.co_filename)
    return functools.update_wrapper(backward, original)


def _tell(tensors: Any) -> None:
    try:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        ends = list(tensors) if isinstance(tensors, (tuple, list)) else [tensors]
        for listener in list(_listeners):
            listener(ends)
    except Exception as error:
        failure = f"backward passes: {type(error).__name__}: {error}"
        if failure not in failures:
            failures.append(failure)
