"""Calls in the user's files that are left out, made seldom, or made elsewhere."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .interfaces import Editor, Edits, Injection
from .setting import (
    Argument,
    Code,
    Loop,
    Run,
    Safety,
    Setting,
    Words,
    as_in_own_loop,
    by_calls,
    not_possible,
    nothing,
    said_itself,
    whole,
)

if TYPE_CHECKING:
    from ..trace.frames import Site

IN_RECORDING = not_possible("the calls are in the recording")


def _without(self: Setting, editor: Editor, site: Site | None) -> Edits:
    return editor.without_calls(self.form.partition(":")[2], site)


class _OfCuda(Setting):
    """The user's calls of a function of torch.cuda, which `form` names, are left out."""

    takes = {"": nothing}

    framework = as_in_own_loop
    in_force = IN_RECORDING
    switch = by_calls
    took_effect = said_itself
    edit = _without

    def inject(self, injection: Injection) -> None:
        """Calls from the user's files return None at once; those from libraries are made."""
        name = self.form.partition(":")[2]

        def act(module: Any) -> None:
            function = name.rpartition(".")[2]
            original = getattr(module, function)

            @functools.wraps(original)
            def left_out(*args: Any, **kwargs: Any) -> Any:
                if not injection.on or injection.caller() is None:
                    return original(*args, **kwargs)
                injection.note(f"{name}()", "left out")
                return None

            setattr(module, function, left_out)

        injection.when_imported("torch.cuda", act)


@dataclass(frozen=True)
class NoSynchronize(_OfCuda):
    """The user's calls of torch.cuda.synchronize() are left out."""

    form = "patch:torch.cuda.synchronize"
    link = "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution"

    def words(self) -> Words:
        after = "end.record()  # start.elapsed_time(end) some steps later"
        return Words("Remove the synchronisation, and time with CUDA events.", "torch.cuda.synchronize()", after)


@dataclass(frozen=True)
class NoEmptyCache(_OfCuda):
    """The user's calls of torch.cuda.empty_cache() are left out."""

    form = "patch:torch.cuda.empty_cache"
    link = "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"

    def words(self) -> Words:
        call = "torch.cuda.empty_cache()"
        return Words("Do not empty the cache in every step.", call, f"if step % 100 == 0:\n    {call}")


@dataclass(frozen=True)
class NoBarrier(Setting):
    """The user's barriers are left out, but for the first call at each line: ranks may need it to start together."""

    form = "patch:torch.distributed.barrier"
    takes = {"": nothing}
    changes = Safety.NEEDS_JUDGEMENT
    link = "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier"

    framework = as_in_own_loop
    in_force = IN_RECORDING
    switch = by_calls
    took_effect = said_itself
    edit = _without

    def words(self) -> Words:
        return Words("Remove the barrier, or move it out of the step.", "dist.barrier()")

    def inject(self, injection: Injection) -> None:
        def act(module: Any) -> None:
            original, called_at = module.barrier, set[Any]()

            @functools.wraps(original)
            def barrier(*args: Any, **kwargs: Any) -> Any:
                place = injection.caller()
                waits = not (kwargs.get("async_op") or args[1:2] == (True,))
                if injection.on and waits and place in called_at:
                    injection.note("torch.distributed.barrier()", "left out after the first", place)
                    return None
                if place is not None:
                    called_at.add(place)
                return original(*args, **kwargs)

            module.barrier = barrier

        injection.when_imported("torch.distributed.distributed_c10d", act)


@dataclass(frozen=True)
class SeldomCollect(Setting):
    """One of `every` calls of gc.collect() in the user's files is made."""

    argument: str = "every"
    value: Any = 500

    form = "patch:gc.collect"
    takes = {"every": whole(1)}
    link = "https://docs.python.org/3/library/gc.html"

    framework = as_in_own_loop
    in_force = IN_RECORDING
    switch = by_calls
    took_effect = said_itself
    is_of_collections = True

    def words(self) -> Words:
        return Words("Move `gc.collect()` out of the step, or call it less often.")

    def inject(self, injection: Injection) -> None:
        original, calls = gc.collect, 0

        @functools.wraps(original)
        def seldom(*args: Any, **kwargs: Any) -> int:
            nonlocal calls
            if not injection.on or injection.caller() is None:
                return original(*args, **kwargs)
            calls += 1
            if calls % self.value == 0:
                return original(*args, **kwargs)
            injection.note("gc.collect()", f"made once in {self.value} calls")
            return 0

        gc.collect = seldom

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.seldom_calls("gc.collect", self.value, site)


@dataclass(frozen=True)
class NoCheckpointing(Setting):
    """Checkpointed functions are called directly: activations are kept, and nothing is recomputed."""

    form = "patch:torch.utils.checkpoint"
    takes = {"": nothing}
    link = "https://docs.pytorch.org/docs/stable/checkpoint.html"

    in_force = IN_RECORDING
    switch = by_calls
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        return Words(
            "Checkpoint only as many layers as memory requires.",
            "x = checkpoint(layer, x, use_reentrant=False)",
            "x = checkpoint(layer, x, use_reentrant=False) if i < checkpointed else layer(x)",
        )

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        trainer = loop is Loop.TRANSFORMERS
        return Argument("transformers.TrainingArguments", "gradient_checkpointing", False) if trainer else None

    def inject(self, injection: Injection) -> None:
        def act(module: Any) -> None:
            original: Callable[..., Any] = module.checkpoint
            own = {"preserve_rng_state", *inspect.signature(original).parameters} - {"kwargs"}

            @functools.wraps(original)
            def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                if not injection.on or sys.modules["torch"].compiler.is_compiling():
                    return original(function, *args, **kwargs)
                injection.note("checkpoint()", "activations are kept")
                return function(*args, **{name: value for name, value in kwargs.items() if name not in own})

            module.checkpoint = checkpoint

        injection.when_imported("torch.utils.checkpoint", act)


@dataclass(frozen=True)
class SaveInBackground(Setting):
    """torch.save() copies, a thread writes, the next save waits for it. What cannot be copied is saved as before."""

    argument: str = "in_background"

    form = "patch:torch.save"
    takes = {"in_background": nothing}
    link = "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html"
    effort = 2

    in_force = IN_RECORDING
    switch = not_possible("saves are rare, and a run must be long enough to include some")
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        after = "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)"
        return Words("Save the checkpoint asynchronously.", "torch.save(state, path)", after)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        """Trainers save by themselves; transformers cannot write in the background."""
        rarely = Argument("transformers.TrainingArguments", "save_steps", Code("10 * save_steps"))
        return rarely if loop is Loop.TRANSFORMERS else None

    def inject(self, injection: Injection) -> None:
        def act(module: Any) -> None:
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

            module.save = save

        injection.when_imported("torch.serialization", act)
