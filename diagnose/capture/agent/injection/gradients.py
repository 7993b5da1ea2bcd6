"""Fixes of how DistributedDataParallel reduces gradients."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import backwards
from ..imports import when_imported
from .fixes import Injection

ALIKE = 2
"""Steps with equally many backward passes, after which the next are taken to have as many (our choice)."""


def _wrap_forward(act: Callable[[Any, Callable[[], Any]], Any]) -> None:
    """Have each forward pass be `act(module, forward)`, where `forward()` is the original."""

    def hook(module: ModuleType) -> None:
        kind = module.DistributedDataParallel
        original = kind.forward

        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if sys.modules["torch"].compiler.is_compiling():
                return original(self, *args, **kwargs)
            return act(self, lambda: original(self, *args, **kwargs))

        kind.forward = forward

    when_imported("torch.nn.parallel.distributed", hook)


class _Accumulation:
    """Leaves out the reduction in all backward passes of a step but the last.

    How many there are is learnt from the first steps. A step with more reduces in each from then on; one with fewer
    reduces before its optimizer steps. So the optimizer always sees what all ranks have summed up.
    """

    def __init__(self, injection: Injection) -> None:
        self._injection = injection
        self._passes = self._before = self._alike = 0
        self._listens = False
        self._unreduced: weakref.WeakSet[Any] = weakref.WeakSet()

    def forward(self, model: Any, forward: Callable[[], Any]) -> Any:
        """Of a pass that belongs to the backward pass after those that were counted."""
        if not self._listens:
            self._listens = True
            backwards.listen_to_ends(self._backward_ended)
        learnt = self._alike >= ALIKE and self._before > 1
        torch = sys.modules["torch"]
        if not (learnt and torch.is_grad_enabled() and model.require_backward_grad_sync):
            return forward()
        if self._passes >= self._before - 1:
            self._unreduced.discard(model)
            return forward()
        self._unreduced.add(model)
        self._injection.note(
            "DistributedDataParallel", f"gradients are reduced in the last of {self._before} backward passes"
        )
        with model.no_sync():
            return forward()

    def _backward_ended(self) -> None:
        self._passes += 1

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Of an optimizer."""
        for model in list(self._unreduced):
            _reduce(model)
        self._unreduced.clear()
        if not self._passes:
            return  # Of several optimizers one after the other.
        self._alike = self._alike + 1 if self._passes == self._before else 1
        self._before, self._passes = self._passes, 0
        if self._before == 1:
            self._injection.refuse("a step has one backward pass")
        elif self._alike < ALIKE:
            self._injection.refuse("steps differ in how many backward passes they have")


def _reduce(model: Any) -> None:
    """The mean of what ranks have summed up alone."""
    torch = sys.modules["torch"]
    ranks = torch.distributed.get_world_size(model.process_group)
    for one in model.parameters():
        if one.requires_grad and one.grad is not None:
            torch.distributed.all_reduce(one.grad.div_(ranks), group=model.process_group)


def no_sync(injection: Injection) -> None:
    """As `no_sync()` around the passes."""
    accumulation = _Accumulation(injection)

    def act(module: Any) -> None:
        module.register_optimizer_step_pre_hook(accumulation.step_begins)

    injection.refuse("nothing is wrapped in DistributedDataParallel, or no optimizer stepped")
    when_imported("torch.optim.optimizer", act)
    _wrap_forward(accumulation.forward)


def _registered(model: Any, name: str) -> str:
    """Register a hook; a clause on why that cannot be done."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if model._comm_hooks:
        return "the script registers a communication hook itself"
    try:
        model.register_comm_hook(None, getattr(default_hooks, name))
    except (TypeError, ValueError, RuntimeError) as error:  # As by a backend that cannot sum up this type.
        return f"the backend cannot do {name}: {str(error)[:200]}"
    return ""


def compress(injection: Injection) -> None:
    """By a hook of torch.distributed.algorithms.ddp_comm_hooks.default_hooks, before the first forward pass."""
    name = injection.trial.value
    known: weakref.WeakSet[Any] = weakref.WeakSet()

    def forward(model: Any, forward: Callable[[], Any]) -> Any:
        if model not in known:
            known.add(model)
            if why := _registered(model, name):
                injection.refuse(why)
            else:
                injection.note("DistributedDataParallel", f"gradients are sent by {name}")
        return forward()

    injection.refuse("nothing is wrapped in DistributedDataParallel")
    _wrap_forward(forward)
