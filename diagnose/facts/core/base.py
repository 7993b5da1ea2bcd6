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
        """`what`: a noun phrase ("call stacks"); `how_to_record_it`: a sentence. Of a log only `what`, as a clause."""
        super().__init__(f"{what}: {how_to_record_it}")
        self.what = what
        self.how_to_record_it = how_to_record_it

    def __eq__(self, other: object) -> bool:
        """Whether both name the same missing thing with the same advice; their classes may differ."""
        return isinstance(other, Missing) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


class Failed(Missing):
    """A fact or rule that raised an error other than Missing, a bug of diagnose: `what` names it and the error."""


def failed(part: str, error: Exception) -> Failed:
    """The Missing to raise for a bug of diagnose in `part`, which is noted in `failures`. Call it in the `except`."""
    failure = failures.note(part, error)
    return Failed(f"{failure.part}, as diagnose itself failed ({failure.error})", failures.REPORT)


class Known:
    """What facts are computed of (a rank, or a run's log), with their values so far. Call a fact with it."""

    def __init__(self) -> None:
        self._known: dict[Callable[..., object], object] = {}

    def _get(self: K, compute: Callable[[K], T]) -> T:
        """A fact's value, computed at the first call. Its `Missing` is kept and raised again; a bug is `Failed`."""
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
    """A rank and the facts computed of it so far. Every fact of a rank takes this as its only parameter."""

    def __init__(self, rank: Rank, step_range: tuple[int, int] | None = None) -> None:
        """`step_range`: use only recorded steps whose numbers are in it, both ends included."""
        super().__init__()
        self.rank, self.step_range = rank, step_range


FACTS: dict[str, Callable[[Facts], object]] = {}  # Every fact of a rank by name.


def once(compute: Callable[[K], T]) -> Callable[[K], T]:
    """Decorator: compute a function once per Facts (or other Known), `Missing` kept too; it is no listed fact."""

    @wraps(compute)
    def cached(facts: K) -> T:
        return facts._get(compute)

    return cached


def registered(registry: dict[str, Callable[[K], object]], compute: Callable[[K], T]) -> Callable[[K], T]:
    """The function computed `once`, and entered in `registry` by its name. Raises ValueError if that is taken."""
    name = compute.__name__
    if name in registry:
        raise ValueError(f"two facts are called {name}")
    registry[name] = cached = once(compute)
    return cached


def fact(compute: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """Decorator: compute a function of Facts once, and list it in FACTS by its name. Raises like `registered`."""
    return registered(FACTS, compute)


def optional(get: Callable[[K], T], facts: K) -> T | None:
    """The fact's value, or None if it is Missing."""
    try:
        return get(facts)
    except Missing:
        return None
