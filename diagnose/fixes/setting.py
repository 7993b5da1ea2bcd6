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
    """A setting as a user is told of it."""

    do: str  # One imperative sentence.
    before: str = ""
    after: str = ""


class Run(NamedTuple):
    """What is known of the settings of a run."""

    rank: RankManifest
    loaders: tuple[Loader, ...]  # That the training takes its batches from.
    environment: Mapping[str, str]


class NotPossible(Exception):
    """A kind has no such part; the message is a clause that says why."""


class Multiple(NamedTuple):
    """So many times what a setting is now."""

    factor: int

    def __str__(self) -> str:
        return f"{self.factor}x"


def not_possible(why: str) -> Callable[..., Any]:
    """A part that a kind has not got; its `why` says so as well."""

    def part(*given: object) -> Any:
        raise NotPossible(why)

    part.why = why  # type: ignore[attr-defined]
    return part


def whole(least: int) -> Callable[[object], bool]:
    """Takes whole numbers from that on."""
    return lambda value: type(value) is int and value >= least


def only(*values: object) -> Callable[[object], bool]:
    """Takes these values."""
    return lambda value: any(value is one or (isinstance(one, str) and value == one) for one in values)


def flag(value: object) -> bool:
    """Takes True and False."""
    return isinstance(value, bool)


def word(value: object) -> bool:
    """Takes a word that a name can carry."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value) is not None


def nothing(value: object) -> bool:
    """Takes no value, or None."""
    return value is None


def times(value: object) -> bool:
    """Takes a multiple of what is there."""
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
        """As JSON and the ledger name it; `catalogue.parsed` reads it."""
        value = "" if self.value is None and self.takes[self.argument] is nothing else f"={self.value}"
        return f"{self.form}({self.argument}{value})" if self.argument else self.form

    @property
    def link(self) -> str:
        """Its documentation."""
        return ""

    @property
    def action(self) -> str:
        """What findings share that one such change of the whole training mends, wherever they are; empty: the name."""
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
        """Its switch is its injection, made when the process starts and off until it is turned on."""
        return type(self).switch is by_calls

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """Of the environment that it sets, which the parent of the process has to do; an empty value takes one out."""
        return ()

    @property
    def is_of_collections(self) -> bool:
        """It changes when garbage is collected."""
        return False

    @property
    def varies_by_process(self) -> bool:
        """What it gains in one process may be another thing in the next, though both run the same script."""
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
        """What a constructor that takes it is given, by name."""
        return {self.argument: self.value}

    def made(self, run: Run) -> tuple[str, tuple[Made | None, ...]] | None:
        """The class whose constructor takes it as an argument, and where the script makes those; None of others."""
        return None

    def caution(self, run: Run) -> str:
        """A sentence on what a run has to do first, where results may change else; empty if there is nothing."""
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
        """A clause on why the process does not have it all the same, by what it says of itself; empty if it has."""
        raise NotImplementedError

    def edit(self, editor: Editor, site: Site | None) -> Edits:
        """The edits of the user's files that do the same. Raises the editor's CannotEdit."""
        raise NotImplementedError


def as_in_own_loop(self: Setting, loop: Loop, run: Run) -> None:
    """For `framework` of kinds that all loops set alike."""


def said_itself(self: Setting, rank: RankManifest) -> str:
    """For `took_effect` of kinds of which the injection has noted all that there is to know."""
    return ""


WHEN_MADE = not_possible("the argument only counts when the object is created")  # For `switch`.


def by_calls(self: Setting, injection: Injection) -> Switch:
    """For `switch` of kinds that stand in for calls of the script's."""

    def turn(on: bool) -> None:
        injection.on = on

    return Switch(turn, injection.changed_nothing, collects=self.is_of_collections)


def split(name: str) -> tuple[str, str, Any] | None:
    """The form, the argument and the value of a name; None if it is no such name."""
    found = NAMED.fullmatch(name)
    return found and (found["form"], found["argument"] or "", _value(found["value"]))


def _value(text: str | None) -> Any:
    if text and text[:-1].isdecimal() and text.endswith("x"):
        return Multiple(int(text[:-1]))
    try:
        return None if text is None else ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
