"""Fixes that leave out calls, or make them elsewhere."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import made
from ..imports import when_imported
from .fixes import Injection


def _users(depth: int) -> made.Place | None:
    """The line that calls our caller, if it is the user's own."""
    frame = sys._getframe(depth)
    known = made.is_users(frame.f_code.co_filename)
    return made.Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if known else None


def collect_seldom(injection: Injection) -> None:
    """Make one of some hundred calls of gc.collect() that stand in the user's files."""
    original, every, calls = gc.collect, injection.trial.value, 0

    @functools.wraps(original)
    def seldom(*args: Any, **kwargs: Any) -> int:
        nonlocal calls
        if _users(2) is None:
            return original(*args, **kwargs)
        calls += 1
        if calls % every == 0:
            return original(*args, **kwargs)
        injection.note("gc.collect()", f"made once in {every} calls")
        return 0

    gc.collect = seldom


def leave_out_cuda(injection: Injection) -> None:
    """All calls of a function of torch.cuda that stand in the user's files."""
    name = injection.trial.name

    def act(module: Any) -> None:
        function = name.rpartition(".")[2]
        original = getattr(module, function)

        @functools.wraps(original)
        def left_out(*args: Any, **kwargs: Any) -> Any:
            if _users(2) is None:
                return original(*args, **kwargs)
            injection.note(f"{name}()", "left out")
            return None

        setattr(module, function, left_out)

    when_imported("torch.cuda", act)


def leave_out_barriers(injection: Injection) -> None:
    """All calls of barrier() of a line in the user's files but its first: that may be what ranks start by."""

    def act(module: Any) -> None:
        original, met = module.barrier, set[made.Place]()

        @functools.wraps(original)
        def barrier(*args: Any, **kwargs: Any) -> Any:
            place = _users(2)
            if place is None or place not in met or kwargs.get("async_op"):
                if place is not None:
                    met.add(place)
                return original(*args, **kwargs)
            injection.note("torch.distributed.barrier()", "left out after the first", place)
            return None

        module.barrier = barrier

    when_imported("torch.distributed.distributed_c10d", act)


def leave_out_checkpointing(injection: Injection) -> None:
    """Call what is checkpointed, and keep its activations."""

    def act(module: ModuleType) -> None:
        original: Callable[..., Any] = module.checkpoint
        own = {"preserve_rng_state", *inspect.signature(original).parameters} - {"kwargs"}

        @functools.wraps(original)
        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if sys.modules["torch"].compiler.is_compiling():
                return original(function, *args, **kwargs)
            injection.note("checkpoint()", "activations are kept")
            return function(*args, **{name: value for name, value in kwargs.items() if name not in own})

        module.checkpoint = checkpoint  # type: ignore[attr-defined]

    when_imported("torch.utils.checkpoint", act)


def save_in_background(injection: Injection) -> None:
    """Copy what is saved, and have a thread write it; the next save waits for that."""

    def act(module: ModuleType) -> None:
        original, writing = module.save, list[threading.Thread]()

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            while writing:
                writing.pop().join()
            try:
                copied = copy.deepcopy(obj) if isinstance(f, str | Path) else None
            except Exception:  # Whatever the classes of what is saved raise.
                copied = None
            if copied is None:
                injection.refuse("what the script saves cannot be copied, or is not saved to a path")
                original(obj, f, *args, **kwargs)
                return
            injection.note("torch.save", "written by a thread")
            writing.append(threading.Thread(target=original, args=(copied, f, *args), kwargs=kwargs))
            writing[0].start()

        module.save = save  # type: ignore[attr-defined]

    when_imported("torch.serialization", act)
