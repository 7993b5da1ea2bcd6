"""Copying the next batch to the GPU while this one is computed."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .interfaces import Injection, no_gpu
from .setting import Argument, Loop, Run, Setting, Words, not_possible, nothing, said_itself


@dataclass(frozen=True)
class Prefetch(Setting):
    """Batches of all DataLoaders that pin them are copied one ahead, on a stream of their own."""

    form = "wrap:prefetch"
    takes = {"": nothing}
    link = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"
    effort = 2

    in_force = not_possible("the copies are in the recording")
    switch = not_possible("batches are made some steps before they are used")
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        return Words(
            "Copy the next batch on a stream of its own while this one is computed.",
            "x = x.to(device)",
            "copying = torch.cuda.Stream()  # once\n"
            "with torch.cuda.stream(copying):\n    x_next = x_next.to(device, non_blocking=True)\n"
            "torch.cuda.current_stream().wait_stream(copying)  # before x_next is used\n"
            "x_next.record_stream(torch.cuda.current_stream())  # its memory is kept until then",
        )

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        where = {
            Loop.TRANSFORMERS: "around the DataLoader that get_train_dataloader() of a Trainer of your own returns",
            Loop.LIGHTNING: "around the DataLoader that train_dataloader() returns",
        }
        return where.get(loop)

    def inject(self, injection: Injection) -> None:
        """The script's own `.to(device)` then finds batches there."""
        found = _Prefetch(injection)

        def act(module: Any) -> None:
            kind = module._BaseDataLoaderIter
            original, reset = kind.__next__, kind._reset
            ahead: weakref.WeakKeyDictionary[Any, OneAhead | None] = weakref.WeakKeyDictionary()

            @functools.wraps(original)
            def next_batch(self: Any) -> Any:
                if self not in ahead:
                    ahead[self] = found.of(self)
                one = ahead[self]
                return original(self) if one is None else one.next(lambda: original(self))

            @functools.wraps(reset)
            def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
                ahead.pop(self, None)
                reset(self, *args, **kwargs)

            kind.__next__ = next_batch
            kind._reset = _reset

        injection.refuse("no DataLoader was asked for batches")
        injection.when_imported("torch.utils.data.dataloader", act)


class _Copied(NamedTuple):
    """A batch whose copy has begun."""

    batch: Any
    event: Any
    """The end of the copy; None: nothing was copied."""
    tensors: list[Any]


class OneAhead:
    """Asks an iterator for a batch more than was given out, and begins to copy that."""

    def __init__(self, copied: Callable[[Any], _Copied], ready: Callable[[_Copied], Any]) -> None:
        self._copied, self._ready = copied, ready
        self._next: _Copied | None = None
        self._over: Exception | None = None

    def next(self, ask: Callable[[], Any]) -> Any:
        """The next batch, as `next(iterator)` gives it, which is `ask()`."""
        if self._next is None and self._over is None:
            self._next = self._asked(ask)
        given, self._next = self._next, None
        if given is None:
            over, self._over = self._over, None
            raise over or StopIteration
        self._next = self._asked(ask)
        return self._ready(given)

    def _asked(self, ask: Callable[[], Any]) -> _Copied | None:
        if self._over is None:
            try:
                return self._copied(ask())
            except Exception as over:  # What was made before is given out first.
                self._over = over
        return None


class _Copier:
    """Copies pinned batches to one GPU, on a stream of its own."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device, self._stream = torch, device, torch.cuda.Stream(device)

    def copied(self, batch: Any) -> _Copied:
        """Begin to copy."""
        tensors = list[Any]()

        def copy(one: Any) -> Any:
            if one.device.type == "cpu" and one.is_pinned():
                tensors.append(one.to(self._device, non_blocking=True))
                return tensors[-1]
            return one

        with self._torch.cuda.stream(self._stream):
            there = mapped(batch, copy, self._torch.Tensor)
            return _Copied(there, self._stream.record_event() if tensors else None, tensors)

    def ready(self, copied: _Copied) -> Any:
        """Have what is launched from now on wait for the copy, and keep its memory until that has run."""
        if copied.event is not None:
            stream = self._torch.cuda.current_stream(self._device)
            stream.wait_event(copied.event)
            for tensor in copied.tensors:
                tensor.record_stream(stream)
        return copied.batch


def mapped(batch: Any, change: Callable[[Any], Any], tensor: type) -> Any:
    """A batch with its tensors changed: itself one, or a tuple, list or dict of such."""
    if isinstance(batch, tensor):
        return change(batch)
    if type(batch) in (list, tuple):
        return type(batch)(mapped(one, change, tensor) for one in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(one, change, tensor) for one in batch))
    if type(batch) is dict:
        return {key: mapped(one, change, tensor) for key, one in batch.items()}
    return batch


class _Prefetch:
    """Which iterators of DataLoaders copy ahead."""

    def __init__(self, injection: Injection) -> None:
        self._injection = injection
        self._copier: _Copier | None = None
        """Made once the model is on its GPU: to look for that takes a while."""

    def of(self, iterator: Any) -> OneAhead | None:
        """None: it gives its batches as it does without the fix."""
        torch = sys.modules["torch"]
        if torch.utils.data.get_worker_info() is not None:
            return None
        if why := no_gpu(torch) or self._prevented(iterator, torch):
            self._injection.refuse(why)
        copier, place = self._copier, self._injection.running()
        if why or copier is None:
            return None

        def copied(batch: Any) -> _Copied:
            found = copier.copied(batch)
            if found.tensors:
                self._injection.note("DataLoader", "batches are copied one ahead, on a stream of their own", place)
            else:
                self._injection.refuse("batches are no tensors, nor tuples, lists or dicts of them")
            return found

        return OneAhead(copied, copier.ready)

    def _prevented(self, iterator: Any, torch: Any) -> str:
        if not iterator._pin_memory:
            return "the DataLoader does not pin its batches"
        if self._copier is None:
            model = self._injection.largest_model()
            device = next((parameter.device for parameter in model.parameters()), None) if model is not None else None
            if device is None or device.type != "cuda":
                return "the model is not on a GPU when batches are asked for"
            self._copier = _Copier(torch, device)
        return ""
