"""The course of all trials of a run: the largest predicted saving first, then all that is kept together."""

from collections.abc import Callable, Sequence

from diagnose.contracts.trials import Range, Trial
from diagnose.statistics import DECIDED
from diagnose.trials import screening
from diagnose.trials.protocol import Bench
from diagnose.trials.results import best, surely_faster
from diagnose.trials.selection import Candidate

SHARE = 0.5  # Of the budget that is left, that screening may take anyway (our choice).

SPARE = 2  # Times what the least pairs of all later runs take is left for them first (our choice).


def seconds_of(one: Candidate, arm_s: float, pairs: int) -> float:
    """That measuring a fix is expected to take, without the start that all switches share."""
    return screening.seconds_of(one) if one.is_switch else 2 * pairs * arm_s


def run(
    bench: Bench,
    some: Sequence[Candidate],
    predicted: Callable[[Sequence[Candidate]], Range | None],
    ended: Callable[[Trial], None],
    together: bool,
) -> None:
    """Measure all within the budget of the bench. `some`: as `in_order`. `predicted`: of several that are kept.

    One process screens all switches, when the first of them is due: what gains more than they do is measured before.
    What was measured is in the bench, also where this raises KeyboardInterrupt. Raises CannotTry.
    """
    first = next((place for place, one in enumerate(some) if one.is_switch), len(some))
    switches, in_runs = [one for one in some if one.is_switch], [one for one in some[first:] if not one.is_switch]
    _in_runs(bench, some[:first], ended, len(in_runs) + bool(switches) + together)
    bench.base = kept_of(bench, some)
    if switches:
        in_runs += bench.screen(switches, _screening_s(bench, len(in_runs) + together))
        in_runs += bench.in_runs_again(switches)
        for trial in bench.in_blocks:
            ended(trial)
    _in_runs(bench, in_runs, ended, int(together))
    spent = sorted(bench.spent)
    for place, number in enumerate(spent):
        ended(bench.go_on(number, len(spent) - 1 - place + together))
    kept = kept_of(bench, some)
    if together and kept and (len(kept) > 1 or bench.in_blocks):
        ended(bench.confirm(kept, predicted(kept)))


def _in_runs(bench: Bench, some: Sequence[Candidate], ended: Callable[[Trial], None], rest: int) -> None:
    """Each in pairs of runs. `rest`: trials that come after these."""
    if some and not bench.base:
        bench.begin()
    for number, one in enumerate(some):
        others, tried = len(some) - 1 - number + rest, one
        ended(found := bench.measure([one], one.predicted, others))
        gains, other = found.verdict == "keep", one.workers(2 if found.verdict == "keep" else 0.5)
        while other is not None and one.is_unsure and found.verdict in DECIDED:
            tried, before = other, found
            ended(found := bench.measure([tried], None, others))
            other = tried.workers(2) if gains and surely_faster(found, before) else None


def _screening_s(bench: Bench, trials: int) -> float:
    """That it may take, if so many trials in runs come after it. It ends before that if all is decided."""
    left_s, runs_s = bench.left_s, trials * 2 * bench.least_pairs * bench.size.expected_s
    return max(SHARE * left_s, left_s - SPARE * runs_s)


def kept_of(bench: Bench, some: Sequence[Candidate]) -> list[Candidate]:
    """Those that pay, each with the value that pays most."""
    kept = {trial.trial for trial in best(bench) if trial.verdict == "keep"}
    found = {one.trial: one for one in (*some, *(one for tried in bench.tried for one in tried))}
    return sorted((one for name, one in found.items() if (name,) in kept), key=lambda one: one.number)
