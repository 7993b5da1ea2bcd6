"""Where one training step ends and the next begins, in a script that does not say so."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .compiled import compiler_switch
from .imports import when_imported
from .phases import OPTIMIZER, phases

ORDER = ("optimizer", "backward", "loader", "call")
"""What steps are found by, best first: an optimizer's step, a backward pass, a batch that a loader is asked for, a call
of the model."""

ENOUGH = 30
"""Events without a better one after which they count as steps (our choice): accumulated gradients and a first
validation take fewer."""

ENOUGH_BESIDE = 200  # The same once an optimizer has been made, which will step some time (our choice).

ENOUGH_S = 10.0
"""That must have passed, too: a validation before the training is mostly shorter (our choice). Not for backward passes
where no optimizer has been made: these train."""

FEW, FEW_S = 3, 20.0
"""Backward passes, and the time since the first of them, after which slow ones count as steps as well (our choice)."""

GONE = 7
"""Times as many steps of other optimizers as there ever were between two of its own, after which an optimizer is taken
to be gone (our choice)."""


class Steps:
    """Calls `on_step(number)` after each step, numbered from 0.

    A step ends with the step of an optimizer. Of several the rarest counts, of equally rare ones the last of the
    round: so a round of all is one step. Which one it is may change until `fixed` is set; after that only if it is
    gone, as when each epoch makes an optimizer of its own. Without any optimizer a step ends with a backward pass; with
    none of these either it begins when a batch is asked for, else when the model is called.
    """

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self._on_step = on_step
        self._stepped: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._anchor: weakref.ref[object] | None = None
        self._number = self._ahead = -1
        self._others = self._most_others = 0
        self._counts = dict.fromkeys(ORDER, 0)
        self._since_s = dict.fromkeys(ORDER, 0.0)
        self.by: str | None = None  # One of ORDER; None until a step has ended.
        self.optimizer_made = False  # There is one, even if it has not stepped yet.
        self.fixed = False

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer's step has ended."""
        if self.by != "optimizer" and self.fixed:
            return
        if self.fixed and self._anchor is not None and optimizer is self._anchor():
            self._most_others, self._others = max(self._most_others, self._others), 0
            self._number += 1
            return self._on_step(self._number)
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
        self.by, self._number = "optimizer", count + self._ahead
        self._on_step(self._number)

    def backward_ended(self) -> None:
        """A backward pass has ended."""
        if self._counted("backward"):
            self._on_step(self._counts["backward"] - 1)

    def batch_asked(self) -> None:
        """The script asks a loader for a batch."""
        if self._counted("loader"):
            self._on_step(self._counts["loader"] - 2)

    def model_called(self) -> None:
        """The script calls its model."""
        if self._counted("call"):
            self._on_step(self._counts["call"] - 2)

    def seen(self) -> dict[str, int]:
        """How many events of each kind there were, as far as they were counted."""
        return {kind: count for kind, count in self._counts.items() if count}

    def _counted(self, kind: str) -> bool:
        """Count an event, and what is worse from the start again. Returns whether it is a step's."""
        if self.by == "optimizer" or (self.fixed and self.by != kind):
            return False
        if not self.fixed:
            for worse in ORDER[ORDER.index(kind) + 1 :]:
                self._counts[worse] = 0
        if not self._counts[kind]:
            self._since_s[kind] = time.monotonic()
        self._counts[kind] += 1
        if not self.fixed and not self._enough(kind):
            return False
        self.by = kind
        return True

    def _enough(self, kind: str) -> bool:
        count, since_s = self._counts[kind], time.monotonic() - self._since_s[kind]
        if self.optimizer_made:
            return kind != "call" and count > ENOUGH_BESIDE and since_s > ENOUGH_S
        if count > ENOUGH:
            return kind == "backward" or since_s > ENOUGH_S
        return kind == "backward" and count > FEW and since_s > FEW_S


def watch_optimizers(on_step: Callable[[object], None]) -> dict[str, bool]:
    """Have `on_step(optimizer)` called after each optimizer's step, once its range in a trace has been closed.

    Returns a dict that gets the key "made" once there is an optimizer, and "compiled" once one stepped within
    torch.compile: of that nothing is told.
    """
    seen: dict[str, bool] = {}

    def wrap(module: ModuleType) -> None:
        import torch  # The script is importing it: it is there, if not yet whole.

        original, compile_with = module.Optimizer.profile_hook_step, compiler_switch()

        def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
            inner = original(function)
            seen["made"] = True

            @functools.wraps(inner)
            def step(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return inner(*args, **kwargs)
                compiler = compile_with(None)
                compile_with(compiler)
                counted = not compiler and phases.begin(OPTIMIZER)
                try:
                    result = inner(*args, **kwargs)
                finally:
                    if counted:
                        phases.end(OPTIMIZER)
                if compiler:
                    seen["compiled"] = True
                else:
                    on_step(args[0])
                return result

            return step

        module.Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    when_imported("torch.optim.optimizer", wrap)
    return seen
