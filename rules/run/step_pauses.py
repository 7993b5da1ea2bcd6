"""Single steps are far longer, or the run pauses between steps.

Outliers take over three times the usual step: they wait for data, collect garbage, compile, or do something else.

Why it costs
    Few such steps can cost as much as all others.
How to fix
    Do less often what happens in these steps. Collect garbage manually. Mark sizes that vary as dynamic.
Ignore when
    the machine is shared, and the pauses are other jobs'.
Sources
    https://docs.python.org/3/library/gc.html#gc.freeze
    https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
"""

from diagnose.facts.watched.log import counted, total
from diagnose.facts.watched.steps import EpochWaits, Outliers, known_epochs
from diagnose.facts.watched.steps import outliers as outliers_of
from diagnose.rulekit.vocabulary import *

SELDOM: Shares = (0.5, 0.9, 0.98)  # Of collections, if they are made every some hundred steps (PA02: our choice).
IN_STEPS: dict[str, tuple[str, str, Shares]] = {
    "collection": ("Python collects garbage in {} steps", "Python garbage collection pauses the training", SELDOM),
    "compilation": (
        "torch.compile compiles in {} steps after the first",
        "torch.compile compiles again after the first step",
        None,
    ),
}
"""Parts of steps that are findings of their own: what is said of them, the title, and what a fix saves."""
MOSTLY_AT_EPOCHS = 0.8  # Share of the pauses at ends of epochs, from which on they are said to be (our choice).
LEAST_PAUSES = 5  # Of pauses that come at a period (our choice).
MOST_APART = 1.5  # More or fewer pauses than at the period at any time: 40 by chance are three off (our choice).
WHY = {part: f"{name} is longer" for part, name in PART_NAMES.items()} | {
    "loader": "the training waits for data",
    "collection": "Python collects garbage",
    "compilation": "code is compiled",
    OTHER_CODE: "other code in the loop takes longer",
}
WHAT_TO_DO = {
    "loader": "Load ahead (num_workers, prefetch_factor), and check what the dataset does in these steps.",
    "collection": "Collect manually every few hundred steps: gc.disable(), then gc.collect(). gc.freeze() helps too.",
    "compilation": "Set TORCH_LOGS=recompiles to find the cause, and mark sizes that vary as dynamic.",
    OTHER_CODE: "Check what the script does in these steps (logging, metrics, images, a scheduler). Do it less often.",
}
RECORD = "Record such steps: `diagnose watch` does so automatically if they come every 60 steps or more often."


@run_rule("RU06")
def step_pauses(
    log: RunLog, facts: RunFacts, outliers: Outliers | None = None, epoch_waits: EpochWaits | None = None
) -> Verdicts:
    for part, (said, title, shares) in IN_STEPS.items():
        spikes = outliers is not None and outliers.part == part
        more = f"This causes step-time spikes (over 3x the typical step){_every(outliers)}." if spikes else ""
        said = said.format(number(counted(log.windows, part)))
        yield costs(log, total(log.windows, part), said, title, WHAT_TO_DO[part], more, part, shares)
    if log.windows:
        yield _outside(log)
    found = outliers_of(facts)
    if found is not None and found.part not in IN_STEPS:
        yield _outlier_steps(log, found, epoch_waits.lost_ns if epoch_waits else 0)


def _outlier_steps(log: RunLog, found: Outliers, starts_ns: int) -> RunFinding:
    """Those whose reason is no finding of its own; of waiting what is beyond that at beginnings of epochs."""
    every = _every(found)
    at = f", {100 * found.regular:.0f} % of them{every}" if every else ""
    take = f"take{'s' * (found.count == 1)} {ms(found.excess_ns / found.count)} longer each"
    left = max(found.excess_ns - starts_ns * (found.part == "loader"), 0)
    said = f"{times(found.count, 'outlier step')} (over 3x the typical step{at}) {take}"
    why = f"In these steps, {WHY[found.part]}." if found.part else "The log does not show which part takes longer."
    change = WHAT_TO_DO.get(found.part, RECORD)
    return costs(log, left, said, f"Step-time spikes{every}", change, why, kind="outlier_steps")


def _every(found: Outliers | None) -> str:
    return f" every {number(found.period_steps)} steps" if found and found.period_steps else ""


def _outside(log: RunLog) -> RunFinding:
    spent, count = total(log.windows, "outside"), counted(log.windows, "outside")
    at_epochs = _at_epochs(log) >= MOSTLY_AT_EPOCHS * count
    longest, period = max(window.of("outside").most_ns for window in log.windows), _period(log, count)
    every = f", one every {period:,.0f} steps" if period else " at irregular intervals"
    where = " at the ends of epochs" if at_epochs else every
    said = f"{times(count, 'pause')}{where}, {ms(spent / max(count, 1))} each (up to {ms(longest)})"
    more = "The script neither evaluates nor saves a checkpoint then. The log does not show what it does."
    title = "Pauses at the ends of epochs" if at_epochs else "Pauses between steps"
    change = "Check what the script does there: logging, metrics, shuffling, copying files."
    return costs(log, spent, said, title, change, more, kind="outside")


def _at_epochs(log: RunLog) -> int:
    begins = [one.began_ns for one in known_epochs(log)[1:]]
    return sum(
        min(window.of("outside").count, sum(window.began_ns <= at <= window.ended_ns for at in begins))
        for window in log.windows
        if window.of("outside").count
    )


def _period(log: RunLog, count: int) -> float | None:
    """Steps from one pause to the next, if they come so evenly that no window's end is far from it; else None."""
    if count < LEAST_PAUSES:
        return None
    every, steps, seen = sum(window.steps for window in log.windows) / count, 0, 0
    for window in log.windows:
        steps, seen = steps + window.steps, seen + window.of("outside").count
        if abs(seen - steps / every) > MOST_APART:
            return None
    return every


EXAMPLES = [
    Fires("1000 steps of 20, every 50 collection 380", saving_ms=(3800, 7448)),
    Fires("1000 steps of 20, every 50 forward 380", saving_ms=(0, 6840)),
    Fires("1000 steps of 20, every 100 between 3000", saving_ms=(0, 27_000)),
    Silent("1000 steps of 20, every 500 forward 380"),
]
