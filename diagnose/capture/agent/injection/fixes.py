"""A fix by its name, and what it has done in this process."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .. import made

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
    """All of the environment that it sets; an empty value takes one out."""

    @property
    def batch_factor(self) -> int:
        """How many times as many samples as without the fix a step has."""
        larger = (self.name, self.argument) == ("DataLoader", "batch_size")
        return int(str(self.value)[:-1]) if larger else 1


class Injection:
    """One fix, and where it took effect in this process."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self._lines = trial, dict[str, None]()
        self._refused = ""
        self.check: Callable[[], str] = str
        """Called when the process ends: a clause on why the fix is not in force; empty if it is."""

    def note(self, what: str, change: str, place: made.Place | None = None) -> None:
        """It has changed something at a place; without one, what the line of the user's which runs now does."""
        place = place or made.running()
        if len(self._lines) < MOST_LINES and place is not None:
            self._lines[f"{what} at {_shown(place.file)}:{place.line}: {change}"] = None

    def note_everywhere(self, change: str) -> None:
        """It has changed something of the whole process."""
        self._lines[change] = None

    def refuse(self, why: str) -> None:
        """It could not change what it met; the last clause on that is kept."""
        self._refused = why

    def found(self) -> tuple[list[str], str]:
        """Sentences on where it took effect; without any, a clause on why, if that is known."""
        if self.trial.kind == "env":
            return self._of_environment()
        why = self.check() if self._lines else self._refused
        return ([], why) if why else (list(self._lines), "")

    def _of_environment(self) -> tuple[list[str], str]:
        for name, value in self.trial.variables:
            if os.environ.get(name, "") != value:
                return [], f"the script sets {name} itself"
        said = [f"{name}={value}" if value else f"no {name}" for name, value in self.trial.variables]
        return [f"{' '.join(said)} in the environment"], ""


def split(name: str) -> Trial | None:
    """The parts of a fix's name; None if it has another form."""
    kind, _, rest = name.partition(":")
    if kind == "env":
        pairs = tuple((left, right) for left, _, right in (one.partition("=") for one in rest.split()))
        return Trial(kind, pairs[0][0], value=pairs[0][1], variables=pairs) if pairs else None
    found = _NAMED.fullmatch(name)
    return found and Trial(kind, found["name"], found["argument"] or "", _value(found["value"]))


def _value(text: str | None) -> Any:
    try:
        return None if text is None else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def no_gpu(torch: Any) -> str:
    """A clause that says so; empty with one."""
    return "" if torch.cuda.is_available() else "PyTorch has no GPU here"
