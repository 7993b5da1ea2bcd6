"""Settings that are made in a running script, without editing it: for the arms of a trial.

Each notes the lines at which it changes something. One that has noted none has not been made, and says why.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from . import backwards, noticed
from .script_files import standalone, when_imported

NO_LINE = "the run reached no line of the script that it changes"
MOST_SAID = 200  # Characters of an error's text (chosen).
MOST_LINES = 8  # That are named for one setting (chosen).
_injected: dict[str, Injection] = {}  # Those of this process, by their names.


def inject(names: Sequence[str], on: bool = True) -> None:
    """Make settings in this process, before the script imports anything; the parent has set environment variables.
    Without `on` they are made ready to be turned on and off later; until then all is as the script makes it."""
    for name in names:
        setting = standalone("fixes.catalogue").parsed(name)
        assert setting is not None, name
        injection = _injected[name] = Injection(setting, on)
        if on or setting.stands_in_for_calls:
            setting.inject(injection)


def switch(name: str, model: Any, optimizers: Sequence[Any]) -> tuple[Any, str]:
    """The `diagnose.fixes.interfaces.Switch` of an injected setting, and ""; else None, and a clause on why not.

    `model`: the largest module that a training step calls; None if none was called. `optimizers`: that stepped.
    """
    injection = _injected[name]
    injection.model, injection.stepped = model, optimizers
    try:
        return injection.setting.switch(injection), ""
    except Exception as error:
        if type(error).__name__ in ("CannotSwitch", "NotPossible"):
            return None, str(error)
        return None, f"it raises {type(error).__name__}: {str(error)[:MOST_SAID]}"


def lines(name: str) -> list[str]:
    """Sentences on where the setting of this name has taken effect by now."""
    return list(_injected[name].lines)


def may_not_change(name: str) -> bool:
    """Whether the setting of this name must leave the training's numbers as they are, up to rounding."""
    return _injected[name].setting.changes.value in ("same_numbers", "rounding")


def found() -> dict[str, object]:
    """Fields of `Arm`: where each setting took effect, and of those that took none a clause on why, if known."""
    each = {name: injection.found() for name, injection in _injected.items()}
    refused = {name: why for name, (_, why) in each.items() if why}
    return {"injected": {name: sentences for name, (sentences, _) in each.items()}, "refused": refused}


class Injection:
    """One setting, and where it took effect in this process: what `diagnose.fixes.interfaces.Injection` says."""

    when_imported = staticmethod(when_imported)
    when_backward_ends = staticmethod(backwards.listen_to_ends)

    def __init__(self, setting: Any, on: bool = True) -> None:
        self.setting, self.on, self._refused = setting, on, ""
        self.lines = dict[str, None]()  # Where it has changed something by now.
        self.model: Any = None  # The largest module that a training step calls, once that is known.
        self.stepped: Sequence[Any] = ()  # Optimizers of torch.optim, likewise.
        self.check: Callable[[], str] = str  # A clause on why it is not in force in the end; empty if it is.

    def note(self, what: str, change: str, place: noticed.Place | None = None) -> None:
        """It has changed something at a line of the user's: without a place, the one that runs now."""
        place = place or noticed.running_line()
        if len(self.lines) < MOST_LINES and place is not None:
            self.lines[f"{what} at {_shown(place.file)}:{place.line}: {change}"] = None

    def note_everywhere(self, change: str) -> None:
        """It has changed something of the whole process."""
        self.lines[change] = None

    def refuse(self, why: str) -> None:
        """It could not change what it met; the last clause on that is kept."""
        self._refused = why

    def trained_model(self) -> Any:
        """The largest of the modules that a training step calls. Raises CannotSwitch if none was called."""
        if self.model is None:
            raise standalone("fixes.interfaces").CannotSwitch("no module was called in a step")
        return self.model

    def optimizers(self) -> Sequence[Any]:
        """Those of torch.optim that stepped."""
        return self.stepped

    def changed_nothing(self) -> str:
        """A clause on why it has changed nothing so far; empty if it has changed something."""
        return "" if self.lines else self._refused or NO_LINE

    def found(self) -> tuple[list[str], str]:
        """Sentences on where it took effect; without any, a clause on why, if that is known."""
        why = self.check() if self.lines else self._refused
        return ([], why) if why else (list(self.lines), "")

    def caller(self) -> noticed.Place | None:
        """The line that called the function which calls this one; None if it is not the user's own."""
        frame = sys._getframe(2)
        return noticed.place_of(frame) if noticed.is_users(frame.f_code.co_filename) else None

    def change_argument(
        self,
        owner: Any,
        function: str,
        shown: str,
        prevented: Callable[[dict[str, Any]], str] = lambda given: "",
        wanted: Callable[[Any], Any] | None = None,
    ) -> None:
        """Have every call of `owner`'s function get the setting's argument while it is on; see the protocol."""
        original, name, value = getattr(owner, function), self.setting.argument, self.setting.value
        signature = inspect.signature(original)
        if name not in signature.parameters:
            self.refuse(f"{shown or owner.__name__} has no {name} in this version of PyTorch")
            return
        default = signature.parameters[name].default

        @functools.wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return original(*args, **kwargs)
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return original(*args, **kwargs)  # Which says it to the script.
            given = bound.arguments
            before = given.get(name, default)
            if before == value:
                self.refuse(f"the script already has {name}={value}")
            elif why := prevented(given):
                self.refuse(why)
            else:
                given[name] = value if wanted is None else wanted(before)
                self.note(shown or type(given["self"]).__name__, f"{name} {before} -> {given[name]}")
            return original(*bound.args, **bound.kwargs)

        setattr(owner, function, changed)

    def change_calls(self, module: str, owner: str, function: str, shown: str = "") -> None:
        """The same of a function of a module, or of its class `owner` if not empty, once the module is imported."""

        def act(found: ModuleType) -> None:
            self.change_argument(getattr(found, owner) if owner else found, function, shown or owner)

        when_imported(module, act)

    def when_complete(self, change: Callable[[Any, Any], str]) -> None:
        """Change the largest model once an optimizer has been made: then it is complete, and on its device."""
        changed: set[int] = set()

        def act(torch: Any, module: ModuleType) -> None:
            model = noticed.largest()
            if model is not None and id(model) not in changed and (what := change(model, torch)):
                changed.add(id(model))
                self.note(type(model).__name__, what)

        self.refuse("the script created no optimizer of torch.optim")
        _when_optimizer_made(act)

    def when_called(self, change: Callable[[Any, Any], str]) -> None:
        """Change the largest of the modules that the first step calls, before the second step.
        The largest one that is there need not be called itself: Lightning calls a method of it."""
        called: dict[int, tuple[Any, noticed.Place | None]] = {}
        hooks: list[Any] | None = None

        def act(torch: Any, module: ModuleType) -> None:
            nonlocal hooks
            if hooks is None:
                before_calls = torch.nn.modules.module.register_module_forward_pre_hook
                hooks = [before_calls(calls), module.register_optimizer_step_post_hook(stepped)]

        def calls(model: Any, args: Any) -> None:
            if id(model) not in called and sys.modules["torch"].is_grad_enabled():
                called[id(model)] = model, noticed.running_line()

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            """At the first optimizer step, change the largest model that was called before; then stop listening."""
            if not called or not hooks:
                return
            while hooks:
                hooks.pop().remove()
            model = noticed.largest_of(module for module, _ in called.values())
            place = called[id(model)][1] if model is not None else None
            called.clear()
            if model is not None and (what := change(model, sys.modules["torch"])):
                self.note(type(model).__name__, what, place)

        self.refuse("no module was called before an optimizer of torch.optim stepped")
        _when_optimizer_made(act)


def _when_optimizer_made(act: Callable[[Any, ModuleType], None]) -> None:
    """Call `act(torch, module)` after each optimizer of torch.optim has been made; `module`: torch.optim.optimizer."""

    def wrap_init(module: ModuleType) -> None:
        original = module.Optimizer.__init__

        @functools.wraps(original)
        def made_optimizer(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            act(sys.modules["torch"], module)

        module.Optimizer.__init__ = made_optimizer

    when_imported("torch.optim.optimizer", wrap_init)


def _shown(file: str) -> str:
    """A file relative to the working folder; only its name if it is not inside."""
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):  # The folder may be gone; or it is in another one.
        return path.name
