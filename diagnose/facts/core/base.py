"""Facts: named pure functions of a rank, each computed once, on demand. What a recording lacks is `Missing`, not 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

from diagnose import failures
from diagnose.trace.model import Rank

T = TypeVar("T")
K = TypeVar("K", bound="Known")


class Missing(Exception):
    """The recording does not hold what a fact needs."""

    def __init__(self, what: str, how_to_record_it: str = "") -> None:
        """`what` is a noun phrase ("call stacks"), `how_to_record_it` a sentence; of a log it is a clause alone."""
        super().__init__(f"{what}: {how_to_record_it}")
        self.what = what
        self.how_to_record_it = how_to_record_it

    def __eq__(self, other: object) -> bool:
        """Whether the same is missing."""
        return isinstance(other, Missing) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


class Failed(Missing):
    """A fact that could not be computed by a fault of ours: `what` says which, and how it failed."""


def failed(part: str, error: Exception) -> Failed:
    """What is missing as a part failed, which is collected; to be called where the error is caught."""
    failure = failures.note(part, error)
    return Failed(f"{failure.part}, as diagnose itself failed ({failure.error})", failures.REPORT)


class Known:
    """Something, and the facts computed of it so far. Pass it to a fact to get its value."""

    def __init__(self) -> None:
        self._known: dict[Callable[..., object], object] = {}

    def _get(self: K, compute: Callable[[K], T]) -> T:
        """The value of a fact, computed at the first call; its `Missing` is kept and raised again."""
        if compute not in self._known:
            try:
                self._known[compute] = compute(self)
            except Missing as missing:
                # Many are constants: with their frames they would keep the tables of every rank alive.
                self._known[compute] = missing.with_traceback(None)
                missing.__context__ = None
            except Exception as error:
                self._known[compute] = failed(compute.__name__, error)
        value = self._known[compute]
        if isinstance(value, Missing):
            raise type(value)(value.what, value.how_to_record_it)
        return cast(T, value)


class Facts(Known):
    """A rank and the facts computed of it so far."""

    def __init__(self, rank: Rank, step_range: tuple[int, int] | None = None) -> None:
        """`step_range`: use only recorded steps whose numbers are in it, both ends included."""
        super().__init__()
        self.rank, self.step_range = rank, step_range


FACTS: dict[str, Callable[[Facts], object]] = {}  # Every fact of a rank by name.


def once(compute: Callable[[K], T]) -> Callable[[K], T]:
    """Have a function of Facts computed once per Facts, `Missing` remembered too."""

    @wraps(compute)
    def cached(facts: K) -> T:
        return facts._get(compute)

    return cached


def registered(known: dict[str, Callable[[K], object]], compute: Callable[[K], T]) -> Callable[[K], T]:
    """Computed once, and known under its name, for rules to ask for. Raises ValueError if one has that name."""
    name = compute.__name__
    if name in known:
        raise ValueError(f"two facts are called {name}")
    known[name] = cached = once(compute)
    return cached


def fact(compute: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """Make a function of Facts a fact. Raises as `registered` does."""
    return registered(FACTS, compute)


def optional(get: Callable[[K], T], facts: K) -> T | None:
    """The fact's value, or None if it is Missing."""
    try:
        return get(facts)
    except Missing:
        return None
