"""Failures of our own: a fact, a rule or a section that fails is missing from the report, and nothing else is.

Facts are kept apart by `facts/core/base.py`, rules by `rulekit/engine.py`, sections by `each`. An analysis and a report
open `collected()`: what fails in it is collected and left out, and the report says so. Elsewhere, and with
DIAGNOSE_DEBUG set, errors are raised.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from msgspec import Struct

P = ParamSpec("P")
T = TypeVar("T")

DEBUG = "DIAGNOSE_DEBUG"  # Environment variable: if it is set, failures are raised.
REPORT = f"Please report this, with what the same command prints with {DEBUG}=1."  # What to do about a failure.

_HERE = Path(__file__).parent
_collected: ContextVar[list[Failure] | None] = ContextVar("collected", default=None)


class Failure(Struct, frozen=True):
    """A part that failed, and of what. Neither holds anything that comes from a recording."""

    part: str  # A noun phrase: "the timeline".
    error: str  # The kind of error, and where in our code: "ValueError, drawing.py:42".

    @property
    def what(self) -> str:
        """What is missing, and why, as a sentence."""
        return f"Left out: {self.part}, as diagnose itself failed ({self.error})."

    @property
    def effect(self) -> str:
        """What to do about it, as a sentence."""
        return f"The rest was made without it. {REPORT}"

    def __str__(self) -> str:
        return f"{self.what} {self.effect}"


@contextmanager
def collected() -> Iterator[list[Failure]]:
    """A list that gets the failures of what is done within it, each once, in order."""
    found: list[Failure] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


@overload
def attempt(part: str, instead: None, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None: ...
@overload
def attempt(part: str, instead: Any, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
def attempt(part: str, instead: Any, make: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
    """What `make` returns; `instead` if that raises: then the failure of `part` is collected, as by `note`."""
    try:
        return make(*args, **kwargs)
    except Exception as error:
        note(part, error)
        return instead


def each(sections: Mapping[str, Callable[P, Iterable[T]]], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
    """What the sections of a report make, in order; `sections`: how to make each, by name. A failed one is left out."""
    for name, make in sections.items():
        yield from section(name, make, *args, **kwargs)


def section(name: str, make: Callable[P, Iterable[T]], *args: P.args, **kwargs: P.kwargs) -> list[T]:
    """What one section of a report makes: nothing if it fails."""
    return attempt(name, [], lambda: list(make(*args, **kwargs)))


def note(part: str, error: Exception) -> Failure:
    """Collect the failure of a part, and return it; to be called where the error is caught. Raises the error outside of
    `collected`, with DIAGNOSE_DEBUG set, and where memory ran out."""
    found = _collected.get()
    if found is None or raised() or isinstance(error, MemoryError):
        raise error
    failure = Failure(part, told(error))
    if failure not in found:
        found.append(failure)
    return failure


def raised() -> bool:
    """Whether failures are to be raised."""
    return bool(os.environ.get(DEBUG))


def told(error: Exception) -> str:
    """The kind of an error, and the last line that is no library's: "ValueError, drawing.py:42"."""
    own = [one for one in traceback.extract_tb(error.__traceback__) if _is_own(Path(one.filename))]
    return f"{type(error).__name__}, {Path(own[-1].filename).name}:{own[-1].lineno}" if own else type(error).__name__


def _is_own(path: Path) -> bool:
    return path.is_relative_to(_HERE) or not any(path.is_relative_to(one) for one in (sys.prefix, sys.base_prefix))
