"""Ranges in a recording for what interrupts a training and only stacks would show: collecting garbage, saving, writing
tensors as text, and starting or ending the workers of a loader."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import writes
from .alone import alone, tried
from .imports import when_imported
from .phases import SAVE, YOUNGEST, phases

AUTOMATIC, ASKED_FOR = "Python GC", "<built-in function collect>"
"""As torch.profiler names collections that Python starts by itself, and those that the script asks for."""

SAVING = "torch.save (checkpoint)"
STARTING, STOPPING = (f"_MultiProcessingDataLoaderIter.{name}" for name in ("__init__", "_shutdown_workers"))
"""By what starts and ends workers in torch.utils.data."""

RANGES = "saving, collections of garbage and texts in recordings"  # What fails alone.
FORMATTING = "Tensor.__repr__ (text)"


class Collections:
    """While it is on, each collection of garbage is a range of the recording."""

    def __init__(self) -> None:
        self._open = Marked("")
        self._callback: Callable[[str, dict[str, int]], None] = self._told

    def on(self) -> bool:
        """Begin; whether this version of torch can.

        A collection may come at any moment, also while ops are traced for a graph. So only a range that calls no op
        will do, and torch.compile must not look at the callback.
        """
        import torch

        if not hasattr(torch._C._profiler, "_RecordFunctionFast"):
            return False
        if "torch._dynamo" in sys.modules:
            self._callback = torch.compiler.disable(self._told)
        gc.callbacks.append(self._callback)
        return True

    def off(self) -> None:
        """End."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)
        self._open.__exit__()

    def _told(self, phase: str, info: dict[str, int]) -> None:
        self._open.__exit__()
        if phase == "start" and info["generation"] > YOUNGEST:
            automatic = gc.isenabled() and gc.get_count()[0] > gc.get_threshold()[0]
            self._open = Marked(AUTOMATIC if automatic else ASKED_FOR, fast=True)
            self._open.__enter__()


_marking: list[Callable[..., Any]] = []
"""Functions that make ranges: once is enough, however many recordings there are."""


class Marked:
    """A range of whatever is recording, if one can be made."""

    def __init__(self, name: str, fast: bool = False) -> None:
        """`fast`: by what calls no op."""
        self._name, self._fast = name, fast
        self._open: Any = None

    def __enter__(self) -> None:
        self._open = alone(RANGES, self._begun)

    def _begun(self) -> Any:
        import torch.profiler

        made = torch._C._profiler._RecordFunctionFast if self._fast else torch.profiler.record_function
        begun = made(self._name)
        begun.__enter__()
        return begun

    def __exit__(self, *_error: object) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            tried(RANGES, opened.__exit__, None, None, None)


def mark_saving() -> None:
    """Have every torch.save be a range of whatever is recording."""
    when_imported("torch.serialization", _mark_saving)


def _mark_saving(module: ModuleType) -> None:
    _mark_saver(module, "save")


SAVERS = {"safetensors.torch": "save_file", "torch.distributed.checkpoint.state_dict_saver": "save"}
"""Other functions that save checkpoints, by their module."""


def mark_other_savers() -> None:
    """The same for SAVERS."""
    for module, name in SAVERS.items():
        when_imported(module, functools.partial(_mark_saver, name=name))


def _mark_saver(module: ModuleType, name: str) -> None:
    original: Callable[..., Any] = getattr(module, name)
    if original in _marking:
        return

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        writes.note(args[1] if len(args) > 1 else kwargs.get("f"))  # Which C++ opens; nothing but a path is noted.
        counted = phases.begin(SAVE)
        try:
            with Marked(SAVING):
                return original(*args, **kwargs)
        finally:
            if counted:
                phases.end(SAVE)

    _marking.append(save)
    for owner in (module, sys.modules.get(module.__name__.partition(".")[0])):
        if getattr(owner, name, None) is original:  # torch itself has taken the name, where it was imported before.
            setattr(owner, name, save)


def mark_formatting() -> None:
    """Have every tensor that is written as text be a range of whatever is recording, if this version of torch can.

    Tensors without data are written as text while graphs are traced: only a range that calls no op will do.
    """
    when_imported("torch._tensor_str", _mark_formatting)


def _mark_formatting(module: ModuleType) -> None:
    import torch

    original: Callable[..., str] = module._str
    if not hasattr(torch._C._profiler, "_RecordFunctionFast") or original in _marking:
        return

    @functools.wraps(original)
    def text(*args: Any, **kwargs: Any) -> str:
        with Marked(FORMATTING, fast=True):
            return original(*args, **kwargs)

    _marking.append(text)
    module._str = text  # type: ignore[attr-defined]
