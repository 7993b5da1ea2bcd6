"""What came of all trials: one result for each finding, the script as it is, and notes on the machine."""

import math
import statistics
from collections.abc import Iterator, Sequence

import msgspec

from diagnose.contracts.trials import Baseline, NotTried, Range, Report, Trial
from diagnose.trials import arms
from diagnose.trials.arms import Arm
from diagnose.trials.protocol import LEAST_FOR_INTERVAL, Bench
from diagnose.trials.selection import named
from diagnose.version import __version__

BUSY_SHARE = 0.05  # Noise from which on it is said (our choice).


def report(bench: Bench, others: Sequence[NotTried], complete: bool) -> Report:
    """Of all that has been tried so far."""
    runs, baseline = len(bench.without), None
    took = sorted(one.step_ns for one in bench.without) if runs > 1 else sorted(bench.blocks_as_it_is)
    if len(took) > 1:
        runs = runs if runs > 1 else 0
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
        notes=() if baseline is None else (*_heat(bench), *_notes(baseline, bench.without)),
        complete=complete,
    )


def best(bench: Bench) -> list[Trial]:
    """One trial of each finding: of several values of a setting a later one only if it is surely faster.

    What fresh runs of a single fix surely contradict in blocks of one run is as they say.
    """
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
    """Of trials of one fix: intervals do not meet."""
    return one.found is not None and other.found is not None and one.found.low > other.found.high


def _heat(bench: Bench) -> Iterator[str]:
    if bench.repeated:
        yield f"Runs repeated because the GPU was throttled by heat: {bench.repeated}."
    if bench.held_back:
        yield f"Runs counted although the GPU was throttled by heat: {bench.held_back}. A cool GPU may differ."


def _notes(baseline: Baseline, without: Sequence[Arm]) -> list[str]:
    notes = list[str]()
    if len(without) < LEAST_FOR_INTERVAL:
        return [told] if (told := arms.busy()) else []
    first, second = (one.losses for one in without[:2])
    if arms.compared(first, second, second) == "not_deterministic" and (resumes := arms.resuming(without[1].reread)):
        notes.append(f"Losses differ between identical runs of the script. {resumes}")
    if baseline.noise_share > BUSY_SHARE:
        notes.append(
            f"Identical runs differ by {baseline.noise_share:.0%}: the machine is busy, or the steps vary."
            " Smaller gains may go undetected."
        )
    if told := arms.busy():
        notes.append(told)
    return notes
