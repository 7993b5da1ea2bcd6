"""Fixes that are another argument of a constructor or of a call."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..imports import when_imported
from .fixes import Injection, no_gpu

Given = dict[str, Any]
"""Arguments of a call by name."""

OF_WORKERS = ("prefetch_factor", "persistent_workers")
"""A DataLoader without workers refuses them."""


def change_argument(
    owner: Any,
    function: str,
    injection: Injection,
    shown: str,
    prevented: Callable[[Given], str] = lambda given: "",
    wanted: Callable[[Any], Any] | None = None,
) -> None:
    """Have every call of a function get the argument of a fix.

    `shown` names what is called; empty: the class of `self`. `prevented(arguments)` is a clause on why a call cannot
    get it; it may change arguments that the new one excludes. `wanted(before)`: the new value, else that of the fix.
    """
    original, name, value = getattr(owner, function), injection.trial.argument, injection.trial.value
    signature = inspect.signature(original)
    if name not in signature.parameters:
        injection.refuse(f"{shown or owner.__name__} has no {name} in this version of PyTorch")
        return
    default = signature.parameters[name].default

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # Which says it to the script.
        given = bound.arguments
        before = given.get(name, default)
        if before == value:
            injection.refuse(f"the script has {name}={value} already")
        elif why := prevented(given):
            injection.refuse(why)
        else:
            given[name] = value if wanted is None else wanted(before)
            injection.note(shown or type(given["self"]).__name__, f"{name} {before} -> {given[name]}")
        return original(*bound.args, **bound.kwargs)

    setattr(owner, function, changed)


def _of_call(module: str, owner: str, function: str, shown: str = "") -> Callable[[Injection], None]:
    """Of a function of a module, or of a class in it. `shown`: its name, if not that of the class."""

    def inject(injection: Injection) -> None:
        def act(found: ModuleType) -> None:
            change_argument(getattr(found, owner) if owner else found, function, injection, shown or owner)

        when_imported(module, act)

    return inject


distributed = _of_call(
    "torch.nn.parallel.distributed", "DistributedDataParallel", "__init__", "DistributedDataParallel"
)
anomalies = _of_call("torch.autograd.anomaly_mode", "set_detect_anomaly", "__init__")
embedding = _of_call("torch.nn.modules.sparse", "Embedding", "__init__")
deterministic = _of_call("torch", "", "use_deterministic_algorithms", "torch.use_deterministic_algorithms")
shard = _of_call("torch.distributed.fsdp._fully_shard._fully_shard", "", "fully_shard", "fully_shard")


def loader(injection: Injection) -> None:
    """Of DataLoaders."""
    name, value = injection.trial.argument, injection.trial.value
    factor = injection.trial.batch_factor

    def prevented(given: Given) -> str:
        if name in OF_WORKERS and not given.get("num_workers", 0):
            return "the DataLoader has no workers"
        if name == "pin_memory" and value:
            return _cannot_pin(sys.modules["torch"])
        if name == "batch_size" and (given.get("batch_sampler") is not None or not given.get("batch_size", 1)):
            return "the script makes its batches itself"
        return ""

    def act(module: ModuleType) -> None:
        wanted = (lambda before: before * factor) if name == "batch_size" else None
        change_argument(module.DataLoader, "__init__", injection, "DataLoader", prevented, wanted)

    when_imported("torch.utils.data.dataloader", act)


def _cannot_pin(torch: Any) -> str:
    accelerator = getattr(torch, "accelerator", None)  # Since torch 2.6.
    return "" if accelerator is not None and accelerator.is_available() else no_gpu(torch)


def optimizers(injection: Injection) -> None:
    """Of all in torch.optim."""
    other = {"fused": "foreach", "foreach": "fused"}[injection.trial.argument]

    def prevented(given: Given) -> str:
        """They exclude each other."""
        if given.get(other):
            given[other] = False
        return "the optimizer is differentiable" if given.get("differentiable") else ""

    def act(module: ModuleType) -> None:
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and "__init__" in vars(kind)]
        for kind in kinds:
            if issubclass(kind, module.Optimizer) and injection.trial.argument in inspect.signature(kind).parameters:
                change_argument(kind, "__init__", injection, "", prevented)

    when_imported("torch.optim", act)


def zero_grad(injection: Injection) -> None:
    """Of optimizers and modules."""
    _of_call("torch.optim.optimizer", "Optimizer", "zero_grad", "zero_grad()")(injection)
    _of_call("torch.nn.modules.module", "Module", "zero_grad", "zero_grad()")(injection)


def compile_calls(injection: Injection) -> None:
    """Of the script's own calls of torch.compile."""

    def prevented(given: Given) -> str:
        both = injection.trial.argument == "mode" and given.get("options") is not None
        return "torch.compile takes either a mode or options" if both else ""

    def act(module: ModuleType) -> None:
        change_argument(module, "compile", injection, "torch.compile", prevented)

    when_imported("torch", act)
