"""A watched run: its logs, and facts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from diagnose.facts.core.base import Known, registered
from diagnose.trace.run_log import RunLog

T = TypeVar("T")


class RunFacts(Known):
    """A rank of a run, or all of them, and the facts computed so far."""

    def __init__(self, logs: Sequence[RunLog], earlier: Sequence[RunLog] = ()) -> None:
        """Of the first log; rules that compare ranks ask for all. `earlier`: attempts of the first rank, in order."""
        super().__init__()
        self.logs = tuple(logs)
        self.attempts = (*earlier, logs[0])

    @property
    def length_ns(self) -> int:
        """Of the longest rank, and of the first one with all its attempts."""
        first, last = self.attempts[0], self.attempts[-1]
        whole_ns = last.started_unix_ns + last.length_ns - first.started_unix_ns
        return max(whole_ns, *(log.length_ns for log in self.logs))


RUN_FACTS: dict[str, Callable[[RunFacts], object]] = {}  # Every fact of a run by name.
OF_ALL_RANKS = frozenset({"logs", "attempts"})  # A rule that needs one of these looks at a run once, else at each rank.


def run_fact(compute: Callable[[RunFacts], T]) -> Callable[[RunFacts], T]:
    """Make a function of RunFacts a fact of a run. Raises as `registered` does."""
    return registered(RUN_FACTS, compute)


@run_fact
def log(run: RunFacts) -> RunLog:
    """The log of the rank."""
    return run.logs[0]


@run_fact
def logs(run: RunFacts) -> tuple[RunLog, ...]:
    """Those of all ranks that have one. A rule that needs them looks at the run once."""
    return run.logs


@run_fact
def attempts(run: RunFacts) -> tuple[RunLog, ...]:
    """The logs of the first rank's processes, in order. A rule that needs them looks at the run once."""
    return run.attempts
