"""What a kind of setting may ask of the two that carry it out: the recorder's agent, and the editor of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import Made, RankManifest

Edits = list[Any]  # `diagnose.patches.code.Edit`.
Given = dict[str, Any]  # Arguments of a call by name.


class CannotSwitch(Exception):
    """A setting cannot be turned on and off in this process; the message is a clause that says why."""


@dataclass(frozen=True)
class Switch:
    """A setting that is turned on and off between two steps of a running training."""

    turn: Callable[[bool], None]  # It begins off; called only to change that. Off restores what was before.
    why_none: Callable[[], str]  # While it is on: a clause on why it is not in force; empty if it is.
    what: str = ""  # Where it takes effect; empty: its notes say it.
    of_optimizer: Callable[[Any, bool], None] | None = None
    """Turn it for one optimizer, as for a copy of one; None where it changes none."""
    changes_outputs: bool = False  # If the model gives the same bits with it, it is not in force.
    collects: bool = False  # It changes when garbage is collected: collections are part of what it costs or saves.


class Injection(Protocol):
    """A setting in the process of the script that is tried, and where it took effect."""

    # Whether calls that it stands in for are changed. Those made while it is off are made as the script makes them.
    on: bool
    # Called when the process ends: a clause on why the setting is not in force; empty if it is.
    check: Callable[[], str]

    # It has changed something at a line of the user's: without a place, the one that runs now.
    def note(self, what: str, change: str, place: Any = None) -> None: ...
    # It has changed something of the whole process.
    def note_everywhere(self, change: str) -> None: ...
    # It could not change what it met; the last clause on that is kept.
    def refuse(self, why: str) -> None: ...
    # Call `act(module)` once that has been imported.
    def when_imported(self, module: str, act: Callable[[Any], None]) -> None: ...
    # Have every call of a function get the setting's argument. `shown` names what is called; empty: the class of
    # `self`. `prevented(arguments)` is a clause on why a call cannot get it; it may change arguments that the new one
    # excludes. `wanted(before)`: the new value, else the setting's.
    def change_argument(
        self,
        owner: Any,
        function: str,
        shown: str,
        prevented: Callable[[Given], str] = ...,
        wanted: Callable[[Any], Any] | None = None,
    ) -> None: ...
    # The same for a function of a module, or of the class `owner` in it, once the module is imported.
    def change_calls(self, module: str, owner: str, function: str, shown: str = "") -> None: ...
    # Change the largest model once an optimizer has been made: then it is complete, and on its device.
    # `change(model, torch)` says what it did; empty: nothing.
    def when_complete(self, change: Callable[[Any, Any], str]) -> None: ...
    # Change the largest of the modules that the first step calls, before the second step.
    def when_called(self, change: Callable[[Any, Any], str]) -> None: ...
    # Call `act()` after each backward pass.
    def when_backward_ends(self, act: Callable[[], None]) -> None: ...
    # The largest of the modules that a training step calls. Raises CannotSwitch if none was called.
    def trained_model(self) -> Any: ...
    # The optimizers of torch.optim that have stepped.
    def optimizers(self) -> Sequence[Any]: ...
    # A clause on why it has changed no call so far; empty if it has changed one.
    def changed_nothing(self) -> str: ...
    # The line that calls the function which asks; None if that line is not in the user's files.
    def caller(self) -> Any: ...


class Editor(Protocol):
    """The user's files. What cannot be done there raises CannotEdit with a clause that says why."""

    rank: RankManifest
    ddp_made: tuple[Made, ...]
    loaders_made: list[Made | None]

    # Raises CannotEdit.
    def refuse(self, why: str) -> None: ...
    # An argument of what makes something of that name, where the recording says, or at the only place.
    def where_made(self, name: str, places: Sequence[Made | None], argument: str, value: object) -> Edits: ...
    # An argument of DataLoaders that needs workers.
    def of_workers(self, argument: str, value: object) -> Edits: ...
    # An argument of the optimizers that take it and have not got it; what excludes it is switched off.
    def of_optimizers(self, argument: str, value: object) -> Edits: ...
    # An argument of all calls of a function or class, by its name or its whole name with modules.
    def every_call(self, function: str, argument: str, value: object) -> Edits: ...
    # The same of those calls that give the argument, and of methods.
    def giving_calls(self, function: str, argument: str, value: object) -> Edits: ...
    def giving_methods(self, method: str, argument: str, value: object) -> Edits: ...
    # An argument of the one call by which transformers loads or makes a model.
    def loaded_by_transformers(self, argument: str, value: object) -> Edits: ...
    # A value that a function of torch's own sets: where it is called, else after the imports.
    def call_once(self, function: str, argument: str, value: object) -> Edits: ...
    # An attribute of torch's: where it is assigned, else after the imports.
    def assigned(self, attribute: str, value: object) -> Edits: ...
    # An environment variable before what reads it is imported; or not set at all, if the value is empty.
    def variable(self, name: str, value: str) -> Edits: ...
    # The calls of a function where the finding is are left out, or made in one step of so many.
    def without_calls(self, function: str, site: Site | None) -> Edits: ...
    def seldom_calls(self, function: str, every: int, site: Site | None) -> Edits: ...
    # A call of a method of the model after its optimizer is made; `{torch}` in it is the file's name for torch.
    def after_optimizer(self, call: str) -> Edits: ...
    # Forward pass and loss under autocast to bfloat16.
    def under_autocast(self) -> Edits: ...


def no_gpu(torch: ModuleType | Any) -> str:
    """A clause that PyTorch has no GPU; empty if it has one."""
    return "" if torch.cuda.is_available() else "PyTorch has no GPU here"
