"""The course of all trials of a run: the largest predicted saving first, then all that is kept together. And what came
of them: one result for each finding, the script as it is, and notes on the machine."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from diagnose.contracts.trials import Baseline, NotTried, Range, Report, Trial
from diagnose.statistics import DECIDED
from diagnose.trials import arms, screening
from diagnose.trials.protocol import LEAST_FOR_INTERVAL, Bench
from diagnose.trials.selection import Candidate, named
from diagnose.version import __version__

SHARE = 0.5  # Of the budget that is left, that screening may take anyway (our choice).
SPARE = 2  # Times what the least pairs of all later runs take is left for them first (our choice).
BUSY_SHARE = 0.05  # Noise from which on it is said (our choice).


def seconds_of(one: Candidate, arm_s: float, pairs: int) -> float:
    """Seconds that measuring a fix is expected to take, without the start that all switches share."""
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
    What was measured is in the bench, also where this raises KeyboardInterrupt. Raises CannotTry."""
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
    """Measure each fix in pairs of runs; of one that sets workers whose gain is unsure, then other numbers of workers:
    twice as many as long as that is faster, half if it gained nothing. `rest`: trials that need budget afterwards."""
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
    """Seconds that screening may take, if so many trials in runs come after it. It ends earlier if all is decided."""
    left_s, runs_s = bench.left_s, trials * 2 * bench.least_pairs * bench.size.expected_s
    return max(SHARE * left_s, left_s - SPARE * runs_s)


def kept_of(bench: Bench, some: Sequence[Candidate]) -> list[Candidate]:
    """The fixes that trials keep, each with its best value, in the order of the findings."""
    kept = {trial.trial for trial in best(bench) if trial.verdict == "keep"}
    found = {one.trial: one for one in (*some, *(one for tried in bench.tried for one in tried))}
    return sorted((one for name, one in found.items() if (name,) in kept), key=lambda one: one.number)


def report(bench: Bench, others: Sequence[NotTried], complete: bool) -> Report:
    """The report of all that has been tried so far."""
    runs, baseline = len(bench.without) if len(bench.without) > 1 else 0, None
    took = sorted(one.step_ns for one in bench.without) if runs else sorted(bench.blocks_as_it_is)
    if len(took) > 1:
        noise = statistics.stdev(map(math.log, took))
        baseline = Baseline(Range(took[0], statistics.median(took), took[-1]), noise, runs)
    alone = tuple(sorted(best(bench), key=lambda one: one.numbers))
    return Report(
        tool_version=__version__,
        baseline=baseline,
        trials=alone,
        together=bench.together,
        keep=tuple(one.rule for one in alone if one.verdict == "keep"),
        not_tried=tuple(others),
        notes=() if baseline is None else tuple(_notes(bench, baseline)),
        complete=complete,
    )


def best(bench: Bench) -> list[Trial]:
    """One trial of each finding: of several values of a setting a later one only if it is surely faster. If the fresh
    runs that confirm a single fix are surely slower than its blocks in one run, theirs is taken."""
    found = dict[tuple[int, ...], Trial]()
    for one in (*bench.in_blocks, *bench.trials):
        before = found.get(one.numbers)
        if before is None or (one.verdict == "keep" and (before.verdict != "keep" or surely_faster(one, before))):
            why = one.why if before is None or before.measured is None else f"{named(before.trial[0])} was slower."
            found[one.numbers] = msgspec.structs.replace(one, why=why, predicted=(before or one).predicted)
        elif one.measured is not None:
            found[one.numbers] = msgspec.structs.replace(
                before, why=f"{before.why} {named(one.trial[0])} was no faster.".strip()
            )
    again = bench.together
    if again is not None and (in_blocks := found.get(again.numbers)) is not None and surely_faster(in_blocks, again):
        found[again.numbers] = msgspec.structs.replace(again, confirms=False, why="One run alone showed more.")
    return list(found.values())


def surely_faster(one: Trial, other: Trial) -> bool:
    """Whether `one` is faster than `other`, beyond doubt: its interval lies above, and they do not meet."""
    return one.found is not None and other.found is not None and one.found.low > other.found.high


def _notes(bench: Bench, baseline: Baseline) -> Iterator[str]:
    if bench.repeated:
        yield f"Runs repeated because the GPU was throttled by heat: {bench.repeated}."
    if bench.held_back:
        yield f"Runs counted although the GPU was throttled by heat: {bench.held_back}. A cool GPU may differ."
    if len(bench.without) >= LEAST_FOR_INTERVAL:
        first, second = bench.without[:2]
        if arms.compared(first.losses, second.losses, second.losses) == "not_deterministic" and (
            resumes := arms.resuming(second.reread)
        ):
            yield f"Losses differ between identical runs of the script. {resumes}"
        if baseline.noise_share > BUSY_SHARE:
            yield (
                f"Identical runs differ by {baseline.noise_share:.0%}: the machine is busy, or the steps vary."
                " Smaller gains may go undetected."
            )
    if busy := arms.busy():
        yield busy
