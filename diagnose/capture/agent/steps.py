"""Where one training step ends and the next begins, in a script that does not say so."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .imports import when_imported

LOADER_BATCHES = 30
"""Batches without any step of an optimizer after which batches count as steps (our choice): accumulated gradients
and a first validation take fewer."""

LOADER_SECONDS = 10.0
"""That must have passed, too: a validation before the training is mostly shorter (our choice)."""

GONE = 7
"""Times as many steps of other optimizers as there ever were between two of its own, after which an optimizer is taken
to be gone (our choice)."""


class Steps:
    """Calls `on_step(number)` after each step, numbered from 0.

    A step ends with the step of an optimizer. Of several the rarest counts, of equally rare ones the last of the
    round: so a round of all is one step. Which one it is may change until `fixed` is set; after that only if it is
    gone, as when each epoch makes an optimizer of its own. Without any optimizer a step begins when a batch is asked
    for.
    """

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self._on_step = on_step
        self._stepped: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._anchor: weakref.ref[object] | None = None
        self._number = self._ahead = -1
        self._others = self._most_others = 0
        self._seen = False
        self._batches = 0
        self._first_batch_s = 0.0
        self.by: str | None = None
        """ "optimizer" or "loader"; None until a step has ended."""
        self.fixed = False

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer's step has ended."""
        if self.by == "loader" and self.fixed:
            return
        count = self._stepped[optimizer] = self._stepped.get(optimizer, 0) + 1
        anchor = self._anchor() if self._anchor is not None else None
        if optimizer is not anchor:
            self._others += 1
            left = self.fixed and self._others > GONE * self._most_others + 1
            gone = self._anchor is not None and (anchor is None or left)
            better = anchor is not None and not self.fixed and 2 <= count <= self._stepped[anchor]
            if not (self._anchor is None or gone or better):
                return
            self._anchor = weakref.ref(optimizer)
            self._ahead = self._number + 1 - count if gone else -1
        else:
            self._most_others = max(self._most_others, self._others)
        self._others = 0
        self.by, self._seen, self._number = "optimizer", True, count + self._ahead
        self._on_step(self._number)

    def batch_asked(self) -> None:
        """The script asks a loader for a batch."""
        if self._seen:
            return
        if not self._batches:
            self._first_batch_s = time.monotonic()
        self._batches += 1
        if self._batches > LOADER_BATCHES and time.monotonic() - self._first_batch_s > LOADER_SECONDS:
            self.by = "loader"
            self._on_step(self._batches - 2)


def watch_optimizers(on_step: Callable[[object], None]) -> dict[str, bool]:
    """Have `on_step(optimizer)` called after each optimizer's step, once its range in a trace has been closed.

    Returns a dict that gets the key "compiled" once an optimizer stepped within torch.compile: of that nothing is told.
    """
    hidden: dict[str, bool] = {}

    def wrap(module: ModuleType) -> None:
        import torch  # The script is importing it: it is there, if not yet whole.

        original, compile_with = module.Optimizer.profile_hook_step, compiler_switch()

        def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
            inner = original(function)

            @functools.wraps(inner)
            def step(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return inner(*args, **kwargs)
                result = inner(*args, **kwargs)
                compiler = compile_with(None)
                compile_with(compiler)
                if compiler:
                    hidden["compiled"] = True
                else:
                    on_step(args[0])
                return result

            return step

        module.Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    when_imported("torch.optim.optimizer", wrap)
    return hidden


def compiler_switch() -> Callable[[Any], Any]:
    """A function that sets what compiles frames that are entered from now on, and returns what did so before.

    Where torch.compile gives up on a function it still compiles what that calls: us as well, which takes seconds; and a
    profiler that starts in there crashes the process at random (torch 2.13). So within it nothing of ours may run, and
    to find that out no function of ours may be called: use this where the script's own frame has called us.
    """
    import torch

    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    switch: Callable[[Any], Any] = getattr(frames, "set_eval_frame", lambda compiler: None)
    return switch
