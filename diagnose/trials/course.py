"""The course of all trials of a run: screening, then runs of what is no switch, then all that is kept together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from diagnose.contracts.trials import Range, Trial
from diagnose.trials import screening
from diagnose.trials.protocol import Bench
from diagnose.trials.selection import Candidate, in_order

SHARE = 0.5  # Of the budget that screening may take anyway (our choice).

SPARE = 2
"""Times what the least pairs of all runs after it take is left for them, before it may take more (our choice)."""


class Watch(Protocol):
    """Who is told."""

    def ended(self, trial: Trial) -> None:
        """A trial has ended."""


def seconds_of(one: Candidate, arm_s: float, pairs: int) -> float:
    """That measuring a fix is expected to take, without the start that all switches share."""
    return screening.seconds_of(one) if one.is_switch else 2 * pairs * arm_s


def ordered(some: Sequence[Candidate], arm_s: float, pairs: int) -> list[Candidate]:
    """Switches, then others; each in the order of what they are predicted to gain for each second of trial."""
    found = in_order(some, lambda one: seconds_of(one, arm_s, pairs))
    return sorted(found, key=lambda one: not one.is_switch)


def run(
    bench: Bench,
    some: Sequence[Candidate],
    predicted: Callable[[Sequence[Candidate]], Range | None],
    watch: Watch,
    together: bool,
) -> None:
    """Measure all within the budget of the bench. `some`: as `ordered`. `predicted`: of several that are kept.

    What was measured is in the bench, also where this raises KeyboardInterrupt. Raises CannotTry.
    """
    switches = [one for one in some if one.is_switch]
    in_runs = [one for one in some if not one.is_switch]
    if switches:
        in_runs += bench.screen(switches, _screening_s(bench, len(in_runs) + together))
        in_runs += bench.in_runs_again(switches)
        for trial in bench.in_blocks:
            watch.ended(trial)
    if in_runs and not bench.base:
        bench.begin()
    for number, one in enumerate(in_runs):
        watch.ended(bench.measure([one], one.predicted, len(in_runs) - 1 - number + together))
    spent = sorted(bench.spent)
    for place, number in enumerate(spent):
        one = in_runs[number]
        watch.ended(bench.go_on(number, [one], one.predicted, len(spent) - 1 - place + together))
    kept = kept_of(bench, some)
    if together and (len(kept) > 1 or bench.base):
        watch.ended(bench.confirm(kept, predicted(kept)))


def _screening_s(bench: Bench, trials: int) -> float:
    """That it may take, if so many trials in runs come after it. It ends before that if all is decided."""
    runs_s = trials * 2 * bench.least_pairs * bench.size.expected_s
    return max(SHARE * bench.budget_s, bench.budget_s - SPARE * runs_s)


def kept_of(bench: Bench, some: Sequence[Candidate]) -> list[Candidate]:
    """Those that pay."""
    kept = [trial.numbers for trial in (*bench.in_blocks, *bench.trials) if trial.verdict == "keep"]
    return sorted((one for one in some if (one.number,) in kept), key=lambda one: one.number)
