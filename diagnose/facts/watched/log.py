"""A watched run: its logs, and sums, counts and quantiles of their windows."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from diagnose.facts.core.base import Known, registered
from diagnose.trace.run_log import Column, RunLog, Window

T = TypeVar("T")

PER_OCTAVE = 16  # Buckets between a time and its double, as the log has it.
PARTS = ("loader", "forward", "backward", "optimizer", "collection", "compilation")
"""Of a step, as the log tells them apart; the rest of it is OTHER_CODE."""
OTHER_CODE = "rest"
OF_STEPS = 0.5
"""Share of steps from which forward passes without gradients are part of steps, as where a teacher is asked in each
(our choice)."""
MIDDLE = 0.5  # Of a window of the log, where a checkpoint in it is taken to be: windows tell no more (our choice).


class RunFacts(Known):
    """A rank of a run, or all of them, and the facts computed so far."""

    def __init__(self, logs: Sequence[RunLog], earlier: Sequence[RunLog] = ()) -> None:
        """Facts are of the first log, some of all. `earlier`: logs of the first rank's earlier attempts, in order."""
        super().__init__()
        self.logs, self.attempts = tuple(logs), (*earlier, logs[0])

    @property
    def length_ns(self) -> int:
        """The longest of each rank's log, and of the first rank from the start of its first attempt to its last end."""
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


def total(windows: Sequence[Window], name: str) -> int:
    """The sum of a column (a name of COLUMNS) over the windows, in ns."""
    return sum(window.of(name).sum_ns for window in windows)


def counted(windows: Sequence[Window], name: str) -> int:
    """How many steps of the windows had any time in a column."""
    return sum(window.of(name).count for window in windows)


def groups(windows: Sequence[Window], most: int) -> Iterator[list[Window]]:
    """Windows in order, put together into at most so many groups of about as much time each."""
    if not windows:
        return
    began, length = windows[0].began_ns, windows[-1].ended_ns - windows[0].began_ns
    found: dict[int, list[Window]] = {}
    for window in windows:
        middle = (window.began_ns + window.ended_ns) / 2 - began
        found.setdefault(int(most * middle / max(length, 1)), []).append(window)
    yield from (found[at] for at in sorted(found))


def quantile_ns(columns: Iterable[Column], share: float) -> int | None:
    """The time that so large a share of steps does not exceed, off by 2.2 % at most; None where no sketch is kept.

    >>> quantile_ns([Column(3, 30, 8, 12, ((48, 1), (53, 2)))], 0.5)
    10
    """
    counts, least, most = Counter[int](), 1 << 62, 0
    for column in columns:
        for bucket, count in column.buckets:
            counts[bucket] += count
        if column.buckets:
            least, most = min(least, column.least_ns), max(most, column.most_ns)
    wanted, seen = share * counts.total(), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            middle = 2.0 ** ((min(bucket, 1000) + 0.5) / PER_OCTAVE)
            return int(min(max(middle, least), most))
    return None


def steps_of(log: RunLog) -> int:
    """All steps that ended, the first included."""
    return 1 + sum(window.steps for window in log.windows)


def saved_steps(log: RunLog) -> int:
    """Steps before the last checkpoint that the log knows; 0: there is none."""
    known = [window for window in log.windows if window.of("save").count]
    return known[-1].first_step + int(MIDDLE * known[-1].steps) if known else 0


def evaluates_in_steps(log: RunLog) -> bool:
    """Whether forward passes without gradients are part of steps: more than OF_STEPS of the steps have one."""
    return counted(log.windows, "evaluation") > OF_STEPS * steps_of(log)


def evaluations(log: RunLog) -> tuple[int, int]:
    """The time of evaluations outside of steps, in ns, and how many there were."""
    edges = [one["evaluation"] for one in (log.start, log.last) if one.get("evaluation")]
    if evaluates_in_steps(log):
        return sum(edges), len(edges)
    return total(log.windows, "evaluation") + sum(edges), counted(log.windows, "evaluation") + len(edges)
