"""What a rule is to the engine that runs it, and drawings of traces in its file."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from diagnose import facts
from diagnose.contracts.finding import Caution, Clean, Finding, NotApplicable, Risk
from diagnose.contracts.watched_run import RunFinding
from diagnose.facts.core.base import FACTS
from diagnose.facts.watched.log import RUN_FACTS

Verdicts: TypeAlias = "Iterator[Finding | Risk | Caution | Clean | NotApplicable | RunFinding]"

WHOLE = "facts"  # The parameter that gets all facts of the rank or run, to ask those that are not known before.


class RuleError(Exception):
    """A file of rules that cannot be used, in one sentence."""


class Check(Struct, frozen=True):
    """A rule's function with the facts it asks for."""

    code: str
    run: Callable[..., Verdicts]
    needs: tuple[str, ...]  # Facts it cannot do without.
    wishes: tuple[str, ...]  # Facts that are None where the recording lacks them.
    known: Mapping[str, Callable[..., object]]  # What it can ask for, by name.

    @property
    def of_run(self) -> bool:
        """Whether it asks for facts of a watched run, not of recorded steps."""
        return self.known is RUN_FACTS


def rule(code: str) -> Callable[[Callable[..., Verdicts]], Check]:
    """Make a function a rule. `code` is its short name (`DL02`), by which `--select` and `--ignore` also know it."""
    return partial(_check, code, FACTS)


def run_rule(code: str) -> Callable[[Callable[..., Verdicts]], Check]:
    """As `rule`, on the log of a whole run."""
    return partial(_check, code, RUN_FACTS)


def _check(code: str, known: Mapping[str, Callable[..., object]], run: Callable[..., Verdicts]) -> Check:
    """The Check of a function: its parameters are the facts that it asks for. Raises RuleError if one is no fact."""
    parameters = inspect.signature(run).parameters.values()
    if any(parameter.name not in known for parameter in parameters):
        facts.import_all()
    if unknown := [parameter.name for parameter in parameters if parameter.name not in (*known, WHOLE)]:
        raise RuleError(f"{run.__name__} asks for {', '.join(unknown)}, which is no fact.")
    needs = tuple(parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty)
    return Check(code, run, needs, tuple(one.name for one in parameters if one.default is None), known)


class Fires(Struct, frozen=True):
    """A drawing on which the rule fires, once; with `saving_ms`, what the fix saves: (low, high), within 5 %.
    A risk saves nothing, so that its drawing states no saving."""

    drawing: str
    saving_ms: tuple[float, float] | None = None


class Silent(Struct, frozen=True):
    """A drawing on which the rule finds nothing worth fixing."""

    drawing: str


class CannotTell(Struct, frozen=True):
    """A drawing that lacks what the rule needs; `because` is part of what it then says."""

    drawing: str
    because: str
