"""What all kinds of settings have in common: a name that is written and read here, and the parts that each defines."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .interfaces import Editor, Edits, Injection, Switch

if TYPE_CHECKING:
    from ..trace.frames import Site
    from ..trace.manifest import Loader, Made, RankManifest

NAMED = re.compile(r"(?P<form>(patch|wrap):[\w.]+?)(\((?P<argument>\w+)(=(?P<value>[\w.-]+))?\)|\(\))?")

PARTS = ("words", "framework", "in_force", "inject", "switch", "took_effect", "edit")
"""What each kind defines, or says that it is not possible and why."""


class Safety(str, Enum):
    """What a fix does to the training's numbers."""

    SAME_NUMBERS = "same_numbers"  # Bit-identical results.
    ROUNDING = "rounding"  # The same sums in another order: differences like those between two runs.
    PRECISION = "precision"  # Less precise arithmetic: compare the loss over some hundred steps.
    NEEDS_JUDGEMENT = "needs_judgement"
    """Changes the optimisation problem (batch, data order): no short run can tell whether that is fine."""


class Loop(str, Enum):
    """What owns the training loop."""

    OWN = "own"  # The user's script.
    TRANSFORMERS = "transformers"  # `transformers.Trainer`.
    LIGHTNING = "lightning"  # `lightning.Trainer`.
    FABRIC = "fabric"  # The script's loop, with `lightning.fabric.Fabric` around model, optimizer and loaders.
    ACCELERATE = "accelerate"  # The script's loop, with `accelerate.Accelerator` around them.
    DEEPSPEED = "deepspeed"  # The script's loop, with DeepSpeed's engine around them.


class Code(str):
    """A value that is an expression, rather than a text."""

    def __repr__(self) -> str:
        return str(self)


DS_CONFIG = "ds_config"


class Argument(NamedTuple):
    """How a framework sets something: an argument of a class of its own, or an entry of a configuration."""

    owner: str  # Whole name of the class; DS_CONFIG: DeepSpeed's; "from_pretrained": that method of the model.
    name: str
    value: object


class Words(NamedTuple):
    """What a user is told to do: a sentence, and code before and after it (empty: none is shown)."""

    do: str  # One imperative sentence.
    before: str = ""
    after: str = ""


class Run(NamedTuple):
    """What the recording of a rank says of the settings that a run has."""

    rank: RankManifest
    loaders: tuple[Loader, ...]  # Those that the training takes its batches from.
    environment: Mapping[str, str]


class NotPossible(Exception):
    """A kind of setting lacks one of PARTS; the message is a clause that says why."""


class Multiple(NamedTuple):
    """A value that is a multiple of what the script has; written as "2x"."""

    factor: int

    def __str__(self) -> str:
        return f"{self.factor}x"


def not_possible(why: str) -> Callable[..., Any]:
    """Stands in for a part that a kind lacks: a call of it raises NotPossible(why); its attribute `why` is the same."""

    def part(*given: object) -> Any:
        raise NotPossible(why)

    part.why = why  # type: ignore[attr-defined]
    return part


def whole(least: int) -> Callable[[object], bool]:
    """A test for `takes` of a kind: whole numbers from `least` on."""
    return lambda value: type(value) is int and value >= least


def only(*values: object) -> Callable[[object], bool]:
    """A test for `takes` of a kind: exactly these values, so that 1 is not True."""
    return lambda value: any(value is one or (isinstance(one, str) and value == one) for one in values)


def flag(value: object) -> bool:
    """Whether it is True or False."""
    return isinstance(value, bool)


def word(value: object) -> bool:
    """Whether it is a text that can stand in a setting's name."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value) is not None


def nothing(value: object) -> bool:
    """Whether there is no value (None)."""
    return value is None


def times(value: object) -> bool:
    """Whether it is a Multiple of more than 1."""
    return isinstance(value, Multiple) and value.factor > 1


@dataclass(frozen=True)
class Setting:
    """A change of a training. Raises ValueError where its kind does not take the argument, or that value of it."""

    argument: str = ""  # Empty: a kind that is one change.
    value: Any = None

    form: ClassVar[str]
    """What is changed, as the name begins: `patch:` a call or setting of the script's, `wrap:` its model or loader."""
    takes: ClassVar[Mapping[str, Callable[[object], bool]]]  # Arguments, and which values each takes.
    since: ClassVar[tuple[int, int]] = (1, 0)  # Version of PyTorch that has it.
    effort: ClassVar[int] = 1  # 1: a line or a flag, 2: some lines, 3: a change of design.

    def __post_init__(self) -> None:
        if self.argument not in self.takes or not self.takes[self.argument](self.value):
            raise ValueError(f"{self.form} does not take {self.argument}={self.value}")

    @property
    def name(self) -> str:
        """Its name in JSON and in the ledger; `catalogue.parsed` makes the setting of it again."""
        value = "" if self.value is None and self.takes[self.argument] is nothing else f"={self.value}"
        return f"{self.form}({self.argument}{value})" if self.argument else self.form

    @property
    def link(self) -> str:
        """Its documentation."""
        return ""

    @property
    def action(self) -> str:
        """A key. Findings whose fixes have the same one are merged, whatever their lines; empty: only at one line."""
        return ""

    @property
    def changes(self) -> Safety:
        """What it does to the training's numbers."""
        return Safety.SAME_NUMBERS

    @property
    def why_not_tried(self) -> str:
        """A clause on why there is no injection of this kind; empty if there is one."""
        return str(getattr(type(self).inject, "why", ""))

    @property
    def why_no_switch(self) -> str:
        """A clause on why it cannot be turned on and off in a running training; empty if it can."""
        return str(getattr(type(self).switch, "why", ""))

    @property
    def stands_in_for_calls(self) -> bool:
        """Whether it wraps functions when the process starts, and its switch only turns these wrappers on and off."""
        return type(self).switch is by_calls

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """Environment variables that the parent sets before it starts the process; an empty value unsets one."""
        return ()

    @property
    def is_of_collections(self) -> bool:
        """Whether it changes when garbage is collected."""
        return False

    @property
    def varies_by_process(self) -> bool:
        """Whether its gain differs from process to process, even if all run the same script."""
        return False

    @property
    def batch_factor(self) -> int:
        """How many times as many samples a step has with it."""
        return 1

    def fits(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability can follow it; (0, 0): unknown."""
        return True

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The setting as keyword arguments of a constructor that takes it."""
        return {self.argument: self.value}

    def made(self, run: Run) -> tuple[str, tuple[Made | None, ...]] | None:
        """The class whose constructor takes it, and where each object is made (None: unknown); None without a class."""
        return None

    def caution(self, run: Run) -> str:
        """A sentence on what to change first, as results might change without; empty if there is nothing."""
        return ""

    def words(self) -> Words:
        """What to do in a loop of one's own."""
        raise NotImplementedError

    def framework(self, loop: Loop, run: Run) -> Argument | str | None:
        """How a framework's users set it, or where the code of `words` goes; None: as in a loop of one's own."""
        raise NotImplementedError

    def in_force(self, run: Run) -> bool:
        """Whether a run has it already, or more of it; False where that is not known."""
        raise NotImplementedError

    def inject(self, injection: Injection) -> None:
        """Set it in this process, in which the script has imported nothing yet. Each place that it changes is noted."""
        raise NotImplementedError

    def switch(self, injection: Injection) -> Switch:
        """How it is turned on and off between two steps. Raises CannotSwitch."""
        raise NotImplementedError

    def took_effect(self, rank: RankManifest) -> str:
        """A clause on why it is not in force although it was injected, by the rank's manifest; empty if it is."""
        raise NotImplementedError

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        """The edits of the user's files that do the same. Raises the editor's CannotEdit."""
        raise NotImplementedError


def as_in_own_loop(self: Setting, loop: Loop, run: Run) -> None:
    """For `framework` of kinds that all loops set alike."""


def said_itself(self: Setting, rank: RankManifest) -> str:
    """For `took_effect` of kinds that only their injection can check: the manifest says nothing of them."""
    return ""


WHEN_MADE = not_possible("the argument only counts when the object is created")  # For `switch`.


def by_calls(self: Setting, injection: Injection) -> Switch:
    """For `switch` of kinds that wrap functions: `inject` has made the wrappers, and this turns them on and off."""

    def turn(on: bool) -> None:
        injection.on = on

    return Switch(turn, injection.changed_nothing, collects=self.is_of_collections)


def split(name: str) -> tuple[str, str, Any] | None:
    """The form, the argument and the value of a name as `Setting.name` writes it; None if it is no such name."""
    found = NAMED.fullmatch(name)
    return found and (found["form"], found["argument"] or "", _value(found["value"]))


def _value(text: str | None) -> Any:
    """The value of a name: "2x" is a Multiple, a Python literal its value, anything else text; None without one."""
    if text and text[:-1].isdecimal() and text.endswith("x"):
        return Multiple(int(text[:-1]))
    try:
        return None if text is None else ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
