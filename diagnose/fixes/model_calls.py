"""Settings of calls of the model: in 16 bits, without recording for gradients."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .interfaces import CannotSwitch, Editor, Edits, Injection, Switch
from .setting import (
    DS_CONFIG,
    Argument,
    Loop,
    Run,
    Safety,
    Setting,
    Words,
    as_in_own_loop,
    not_possible,
    nothing,
    said_itself,
)

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import RankManifest


@dataclass(frozen=True)
class Autocast(Setting):
    """The forward pass runs under autocast to bfloat16; not to float16, whose gradients would have to be scaled."""

    form = "wrap:torch.autocast"
    takes = {"": nothing}
    since = (1, 10)
    changes = Safety.PRECISION
    link = "https://docs.pytorch.org/docs/stable/amp.html"

    def words(self) -> Words:
        after = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)'
        return Words("Run the forward pass and the loss under autocast.", after=after)

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        return {
            Loop.TRANSFORMERS: Argument("transformers.TrainingArguments", "bf16", True),
            Loop.LIGHTNING: Argument("lightning.Trainer", "precision", "bf16-mixed"),
            Loop.FABRIC: Argument("lightning.Fabric", "precision", "bf16-mixed"),
            Loop.ACCELERATE: Argument("accelerate.Accelerator", "mixed_precision", "bf16"),
            Loop.DEEPSPEED: Argument(DS_CONFIG, "bf16", {"enabled": True}),
        }.get(loop)

    def in_force(self, run: Run) -> bool:
        """Always False: if autocast is entered somewhere, other work may still run outside. Rules look at the ops."""
        return False

    def inject(self, injection: Injection) -> None:
        def change(model: Any, torch: Any) -> str:
            """Once, after the first step, on the largest module that it called; empty: nothing was changed."""
            device = _device_of(model, torch)
            if why := _no_bfloat16(device, torch):
                injection.refuse(why)
                return ""
            model.forward = torch.autocast(device.type, torch.bfloat16)(model.forward)
            return "forward() in autocast to bfloat16"

        injection.when_called(change)

    def switch(self, injection: Injection) -> Switch:
        """Autocast is entered around calls of the model. Compiled code guards on autocast, so it stays valid."""
        model, torch = injection.trained_model(), sys.modules["torch"]
        device = _device_of(model, torch)
        if why := _no_bfloat16(device, torch):
            raise CannotSwitch(why)
        turn, entered = _around_calls(model, lambda: torch.autocast(device.type, torch.bfloat16), lambda: True)

        def why_none() -> str:
            return "" if entered() else "autocast to bfloat16 was not entered"

        what = f"{type(model).__name__}: called in autocast to bfloat16"
        return Switch(turn, why_none, what, changes_outputs=True)

    def took_effect(self, rank: RankManifest) -> str:
        entered = "bfloat16" in rank.flags.autocast.values()
        return "" if entered else "autocast to bfloat16 was not entered"

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        return editor.under_autocast()


NO_EVALUATION = "the model is not called in evaluation mode with autograd on"


@dataclass(frozen=True)
class NoGradInEvaluation(Setting):
    """Calls of the model in evaluation mode record nothing for a backward pass."""

    form = "wrap:torch.no_grad"
    takes = {"": nothing}
    changes = Safety.SAME_NUMBERS
    link = "https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html"

    framework = as_in_own_loop
    in_force = not_possible("whether autograd records is in the recording")
    took_effect = said_itself
    edit = not_possible("it needs an edit by hand")

    def words(self) -> Words:
        return Words(
            "Run this forward pass under torch.inference_mode(); `model.eval()` does not disable autograd.",
            after="with torch.inference_mode():\n    loss = evaluate(model, batch)",
        )

    def inject(self, injection: Injection) -> None:
        def change(model: Any, torch: Any) -> str:
            turn, entered = self._around(model, torch)
            injection.check = lambda: "" if entered() else NO_EVALUATION
            turn(True)
            return "called without autograd in evaluation mode"

        injection.when_called(change)

    def switch(self, injection: Injection) -> Switch:
        """Outputs stay the same. A script that calls backward() on outputs of evaluation mode fails."""
        model = injection.trained_model()
        turn, entered = self._around(model, sys.modules["torch"])
        what = f"{type(model).__name__}: called without autograd in evaluation mode"
        return Switch(turn, lambda: "" if entered() else NO_EVALUATION, what)

    def _around(self, model: Any, torch: Any) -> tuple[Callable[[bool], None], Callable[[], bool]]:
        return _around_calls(model, torch.no_grad, lambda: not model.training and torch.is_grad_enabled())


def _around_calls(
    model: Any, context: Callable[[], AbstractContextManager[Any]], applies: Callable[[], bool]
) -> tuple[Callable[[bool], None], Callable[[], bool]]:
    """`turn(on)`, by which calls of the model run in `context()` if `applies()`; and whether any has entered it so far.
    `turn` replaces `__call__` of the model's class, but changes calls of this model only: compiled code stays valid."""
    kind, entered = type(model), False
    own, original = vars(kind).get("__call__"), kind.__call__

    @functools.wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal entered
        if self is not model or not applies():
            return original(self, *args, **kwargs)
        entered = True
        with context():
            return original(self, *args, **kwargs)

    def turn(on: bool) -> None:
        if on:
            kind.__call__ = called
        elif own is None:
            del kind.__call__
        else:
            kind.__call__ = own

    return turn, lambda: entered


def _device_of(model: Any, torch: Any) -> Any:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _no_bfloat16(device: Any, torch: Any) -> str:
    """A clause on why the device cannot compute in bfloat16; empty if it can."""
    if device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) < (8, 0):
        return "this GPU has no bfloat16, and float16 needs a GradScaler in the script"
    return ""
