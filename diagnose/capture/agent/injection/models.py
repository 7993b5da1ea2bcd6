"""Fixes of the model."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import made
from ..imports import when_imported
from ..models import largest
from .fixes import Injection

COMPILED_ALREADY = "the script compiles the model itself"


def _when_optimized(act: Callable[[Any, ModuleType], None]) -> None:
    """Call `act(torch, module)` after each optimizer of torch.optim has been made; `module`: torch.optim.optimizer."""

    def hook(module: ModuleType) -> None:
        original = module.Optimizer.__init__

        @functools.wraps(original)
        def made_optimizer(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            act(sys.modules["torch"], module)

        module.Optimizer.__init__ = made_optimizer

    when_imported("torch.optim.optimizer", hook)


def _when_complete(injection: Injection, change: Callable[[Any, Any], str]) -> None:
    """Change the largest model once an optimizer has been made: then it is complete, and on its device.

    `change(model, torch)` says what it did; empty: nothing.
    """
    changed: set[int] = set()

    def act(torch: Any, module: ModuleType) -> None:
        model = largest()
        if model is not None and id(model) not in changed and (what := change(model, torch)):
            changed.add(id(model))
            injection.note(type(model).__name__, what)

    injection.refuse("no optimizer of torch.optim was made")
    _when_optimized(act)


def _when_called(injection: Injection, change: Callable[[Any, Any], str]) -> None:
    """Change the largest of the modules that the first step calls, before the second step.

    The largest one that is there need not be called itself: Lightning calls a method of it.
    """
    called: dict[int, tuple[Any, made.Place | None]] = {}
    hooks: list[Any] | None = None

    def act(torch: Any, module: ModuleType) -> None:
        nonlocal hooks
        if hooks is None:
            before_calls = torch.nn.modules.module.register_module_forward_pre_hook
            hooks = [before_calls(calls), module.register_optimizer_step_post_hook(stepped)]

    def calls(model: Any, args: Any) -> None:
        if id(model) not in called and sys.modules["torch"].is_grad_enabled():
            called[id(model)] = model, made.running()

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not called or not hooks:
            return
        while hooks:
            hooks.pop().remove()
        model, place = max(called.values(), key=lambda one: sum(each.numel() for each in one[0].parameters()))
        called.clear()
        if what := change(model, sys.modules["torch"]):
            injection.note(type(model).__name__, what, place)

    injection.refuse("no module was called before an optimizer of torch.optim stepped")
    _when_optimized(act)


def to_channels_last(injection: Injection) -> None:
    """Weights of convolutions, and by them what these give."""

    def change(model: Any, torch: Any) -> str:
        count = 0
        for one in model.parameters():
            if one.dim() == 4 and not one.is_contiguous(memory_format=torch.channels_last):
                one.data = one.data.contiguous(memory_format=torch.channels_last)
                count += 1
        if not count:
            injection.refuse("the model has no weights of four dimensions that are not channels_last already")
        return f"{count} weights to channels_last, and with them what convolutions give" if count else ""

    _when_complete(injection, change)


def compile_model(injection: Injection) -> None:
    """By Module.compile(), which changes what a call of it does."""
    options = {injection.trial.argument: injection.trial.value} if injection.trial.argument else {}

    def compiled_nothing() -> str:
        frames = sys.modules.get("torch._dynamo.utils")
        done = frames is not None and frames.counters["frames"]["ok"] > 0
        return "" if done else "torch.compile compiled nothing: it could trace no part of the model"

    def change(model: Any, torch: Any) -> str:
        if any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in model.modules()):
            injection.refuse(COMPILED_ALREADY)
            return ""
        injection.check = compiled_nothing
        model.compile(**options)
        return f"compiled when it is called{''.join(f', {name}={value}' for name, value in options.items())}"

    _when_called(injection, change)


def autocast_model(injection: Injection) -> None:
    """To bfloat16 only: gradients in float16 have to be scaled, and unscaled before whatever reads them."""

    def change(model: Any, torch: Any) -> str:
        device = next((one.device for one in model.parameters()), torch.device("cpu"))
        if device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) < (8, 0):
            injection.refuse("this GPU has no bfloat16, and float16 needs a GradScaler in the script")
            return ""
        model.forward = torch.autocast(device.type, torch.bfloat16)(model.forward)
        return "forward() in autocast to bfloat16"

    _when_called(injection, change)


def attention(injection: Injection) -> None:
    """Of models of transformers, which choose it by a setting."""
    wanted = injection.trial.value

    def change(model: Any, torch: Any) -> str:
        known = [one for one in model.modules() if hasattr(one, "set_attn_implementation")]
        others = [one for one in known if one.config._attn_implementation != wanted]
        if not known:
            injection.refuse("the model has no attn_implementation, which models of transformers have")
            return ""
        if not others:
            injection.refuse(f"the script has attn_implementation={wanted} already")
            return ""
        first, before = others[0], others[0].config._attn_implementation
        try:
            first.set_attn_implementation(wanted)
        except (ValueError, ImportError) as error:
            injection.refuse(f"transformers refuses attn_implementation={wanted}: {str(error)[:200]}")
            return ""
        if first.config._attn_implementation != wanted:
            injection.refuse(f"{type(first).__name__} cannot change its attn_implementation")
            return ""
        return f"attn_implementation {before} -> {wanted}"

    _when_complete(injection, change)
