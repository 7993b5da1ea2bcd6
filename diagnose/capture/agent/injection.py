"""Fixes that are made in a running script, without editing it: for the arms of a trial.

A fix is named as in `Fix.trial`: `env:NAME=VALUE` (of several variables with blanks between them),
`patch:Name(argument=value)` or `wrap:...`. Each notes the lines at which it changes something. A fix that has noted
none has not been made.
"""

from __future__ import annotations

import ast
import copy
import functools
import gc
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from . import made, models
from .imports import when_imported

MOST_LINES = 8
"""That are named for one fix (our choice)."""

_NAMED = re.compile(r"(?P<kind>patch|wrap):(?P<name>[\w.]+?)(\((?P<argument>\w+)(=(?P<value>[\w.-]+))?\)|\(\))?")


class Trial(NamedTuple):
    """What the name of a fix says."""

    kind: str
    """env, patch or wrap."""
    name: str
    argument: str = ""
    value: Any = None
    """Of the argument, or of the environment variable."""
    variables: tuple[tuple[str, str], ...] = ()
    """All of the environment that it sets."""


class Injection:
    """One fix, and where it took effect in this process."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self._lines = trial, dict[str, None]()

    def note(self, what: str, change: str) -> None:
        """It has changed something that the line of the user's which runs now does."""
        if len(self._lines) < MOST_LINES and (place := made.running()) is not None:
            self._lines[f"{what} at {_shown(place.file)}:{place.line}: {change}"] = None

    def note_everywhere(self, change: str) -> None:
        """It has changed something of the whole process."""
        self._lines[change] = None

    def effects(self) -> list[str]:
        """Sentences on where it took effect."""
        if self.trial.kind != "env":
            return list(self._lines)
        wanted = self.trial.variables
        if any(os.environ.get(name) != value for name, value in wanted):
            return []  # The script has set another value.
        return [f"{' '.join(f'{name}={value}' for name, value in wanted)} in the environment"]


def parsed(trial: str) -> Trial | None:
    """A fix by its name; None if there is no such injection."""
    kind, _, rest = trial.partition(":")
    if kind == "env":
        variables = dict(one.partition("=")[::2] for one in rest.split())
        known = bool(variables) and VARIABLES.issuperset(variables)
        return _of_environment(variables) if known else None
    found = _NAMED.fullmatch(trial)
    if found is None:
        return None
    one = Trial(kind, found["name"], found["argument"] or "", _value(found["value"]))
    return one if (one.name, one.argument) in FORMS or _of_constructor(one) else None


def _of_environment(variables: dict[str, str]) -> Trial:
    first, *_ = pairs = tuple(variables.items())
    return Trial("env", first[0], value=first[1], variables=pairs)


def inject(fixes: Sequence[str]) -> None:
    """Make fixes in this process, before the script imports anything. Of environment variables the parent has."""
    for fix in fixes:
        trial = parsed(fix)
        assert trial is not None, fix
        injection = _injected[fix] = Injection(trial)
        if trial.kind != "env":
            FORMS.get((trial.name, trial.argument), _change_constructor)(injection)


def effects() -> dict[str, list[str]]:
    """Of each fix where it took effect."""
    return {fix: injection.effects() for fix, injection in _injected.items()}


_injected: dict[str, Injection] = {}


def _value(text: str | None) -> Any:
    try:
        return None if text is None else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _change_argument(
    owner: Any,
    function: str,
    injection: Injection,
    what: Callable[[dict[str, Any]], str],
    fits: Callable[[dict[str, Any]], bool] = lambda given: True,
) -> None:
    """Have every call of a function get the argument of a fix, where the other arguments allow it.

    `what(arguments)` names what is called. `fits` may change arguments that the new one excludes.
    """
    original, name, value = getattr(owner, function), injection.trial.argument, injection.trial.value
    signature = inspect.signature(original)
    if name not in signature.parameters:
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
        if before != value and fits(given):
            given[name] = value
            injection.note(what(given), f"{name} {before} -> {value}")
        return original(*bound.args, **bound.kwargs)

    setattr(owner, function, changed)


LOADER_ARGUMENTS = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
OF_WORKERS = ("prefetch_factor", "persistent_workers")
"""A DataLoader without workers refuses them."""


def _of_constructor(trial: Trial) -> bool:
    """Whether it is an argument of a constructor that can be changed."""
    loader = trial.name == "DataLoader" and trial.argument in LOADER_ARGUMENTS
    return trial.value is not None and (loader or (trial.name == "DistributedDataParallel" and trial.argument != ""))


def _change_constructor(injection: Injection) -> None:
    name = injection.trial.name
    loader = name == "DataLoader"

    def fits(given: dict[str, Any]) -> bool:
        return injection.trial.argument not in OF_WORKERS or given.get("num_workers", 0) > 0

    def act(module: ModuleType) -> None:
        _change_argument(getattr(module, name), "__init__", injection, lambda given: name, fits)

    when_imported("torch.utils.data.dataloader" if loader else "torch.nn.parallel.distributed", act)


def _fuse_optimizers(injection: Injection) -> None:
    def fits(given: dict[str, Any]) -> bool:
        """foreach and fused exclude each other."""
        given.update({"foreach": False} if given.get("foreach") else {})
        return not given.get("differentiable")

    def act(module: ModuleType) -> None:
        for kind in vars(module).values():
            if isinstance(kind, type) and "__init__" in vars(kind) and issubclass(kind, module.Optimizer):
                _change_argument(kind, "__init__", injection, lambda given: type(given["self"]).__name__, fits)

    when_imported("torch.optim", act)


def _set_gradients_to_none(injection: Injection) -> None:
    def what(given: dict[str, Any]) -> str:
        return "zero_grad()"

    when_imported(
        "torch.optim.optimizer", lambda module: _change_argument(module.Optimizer, "zero_grad", injection, what)
    )
    when_imported(
        "torch.nn.modules.module", lambda module: _change_argument(module.Module, "zero_grad", injection, what)
    )


def _compile_dynamically(injection: Injection) -> None:
    when_imported("torch", lambda module: _change_argument(module, "compile", injection, lambda given: "torch.compile"))


def _switch_anomaly_detection(injection: Injection) -> None:
    def act(module: ModuleType) -> None:
        _change_argument(module.set_detect_anomaly, "__init__", injection, lambda given: "set_detect_anomaly")

    when_imported("torch.autograd.anomaly_mode", act)


def _search_for_kernels(injection: Injection) -> None:
    def act(module: Any) -> None:
        module.backends.cudnn.benchmark = True
        injection.note_everywhere("torch.backends.cudnn.benchmark is on from the start")

    when_imported("torch", act)


def _set_threads(injection: Injection) -> None:
    """At once, and wherever the script sets another number. What torch sets in its workers stays."""

    def act(module: ModuleType) -> None:
        original, wanted, before = module.set_num_threads, injection.trial.value, module.get_num_threads()

        @functools.wraps(original)
        def set_num_threads(threads: int) -> None:
            own = made.is_users(sys._getframe(1).f_code.co_filename)
            if own and threads != wanted:
                injection.note("torch.set_num_threads", f"{threads} -> {wanted}")
            original(wanted if own else threads)

        module.set_num_threads = set_num_threads  # type: ignore[attr-defined]
        if before != wanted:
            original(wanted)
            injection.note_everywhere(f"torch computes with {wanted} threads from the start, not with {before}")

    when_imported("torch", act)


def _save_in_background(injection: Injection) -> None:
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
                original(obj, f, *args, **kwargs)
                return
            injection.note("torch.save", "written by a thread")
            writing.append(threading.Thread(target=original, args=(copied, f, *args), kwargs=kwargs))
            writing[0].start()

        module.save = save  # type: ignore[attr-defined]

    when_imported("torch.serialization", act)


def _call_seldom(module: str, function: str, injection: Injection) -> None:
    """Leave out calls that stand in files of the user's, but for each `value`-th of them."""
    trial = injection.trial

    def act(owner: ModuleType) -> None:
        original, calls = getattr(owner, function), 0

        @functools.wraps(original)
        def seldom(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if not made.is_users(sys._getframe(1).f_code.co_filename):
                return original(*args, **kwargs)
            calls += 1
            if trial.value and calls % trial.value == 0:
                return original(*args, **kwargs)
            injection.note(f"{trial.name}()", f"made once in {trial.value} calls" if trial.value else "left out")
            return 0

        setattr(owner, function, seldom)

    when_imported(module, act)


def _collect_seldom(injection: Injection) -> None:
    _call_seldom(gc.__name__, "collect", injection)


def _leave_out_cuda(injection: Injection) -> None:
    _call_seldom("torch.cuda", injection.trial.name.rpartition(".")[2], injection)


def _change_models(injection: Injection, change: Callable[[Any, Any], str]) -> None:
    """Change the model once an optimizer has been made: then it is complete, and on its device.

    `change(model, torch)` says what it did; empty: nothing.
    """
    changed: set[int] = set()

    def act(module: ModuleType) -> None:
        original = module.Optimizer.__init__

        @functools.wraps(original)
        def made_optimizer(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            model = models.largest()
            if model is not None and id(model) not in changed and (what := change(model, sys.modules["torch"])):
                changed.add(id(model))
                injection.note(type(model).__name__, what)

        module.Optimizer.__init__ = made_optimizer

    when_imported("torch.optim.optimizer", act)


def _to_channels_last(injection: Injection) -> None:
    def change(model: Any, torch: Any) -> str:
        count = 0
        for one in model.parameters():
            if one.dim() == 4 and not one.is_contiguous(memory_format=torch.channels_last):
                one.data = one.data.contiguous(memory_format=torch.channels_last)
                count += 1
        return f"{count} weights to channels_last, and with them what convolutions give" if count else ""

    _change_models(injection, change)


def _compile_model(injection: Injection) -> None:
    options = {injection.trial.argument: injection.trial.value} if injection.trial.argument else {}

    def change(model: Any, torch: Any) -> str:
        if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None:
            return ""
        model.compile(**options)
        return f"compiled when it is called{''.join(f', {name}={value}' for name, value in options.items())}"

    _change_models(injection, change)


def _autocast_model(injection: Injection) -> None:
    def change(model: Any, torch: Any) -> str:
        device = next(model.parameters()).device.type
        model.forward = torch.autocast(device, torch.bfloat16)(model.forward)
        return "forward() in autocast to bfloat16"

    _change_models(injection, change)


VARIABLES = frozenset(
    {
        "OMP_NUM_THREADS",
        "CUDA_LAUNCH_BLOCKING",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    }
)
"""Environment variables that torch, or what it stands on, reads when it starts."""

FORMS: dict[tuple[str, str], Callable[[Injection], None]] = {
    ("torch.optim", "fused"): _fuse_optimizers,
    ("zero_grad", "set_to_none"): _set_gradients_to_none,
    ("torch.compile", "dynamic"): _compile_dynamically,
    ("set_detect_anomaly", "mode"): _switch_anomaly_detection,
    ("torch.set_num_threads", "threads"): _set_threads,
    ("torch.backends.cudnn", "benchmark"): _search_for_kernels,
    ("torch.save", "in_background"): _save_in_background,
    ("gc.collect", "every"): _collect_seldom,
    ("torch.cuda.synchronize", ""): _leave_out_cuda,
    ("torch.cuda.empty_cache", ""): _leave_out_cuda,
    ("channels_last", ""): _to_channels_last,
    ("torch.compile", ""): _compile_model,
    ("torch.compile", "mode"): _compile_model,
    ("torch.autocast", ""): _autocast_model,
}
"""By the name of what is changed and the argument: how to inject it."""
