"""What the training stops for: evaluations, checkpoints, and what is between steps."""

from diagnose.contracts.finding import Evidence
from diagnose.contracts.watched_run import RunBasis, RunFinding, RunFindingKind, RunPartKind
from diagnose.trace.run_log import RunLog
from diagnose.trace.units import duration, long_duration, number, share
from diagnose.watched.parts import parts, steps_of
from diagnose.watched.pricing import BACKGROUND, UNKNOWN, Shares, cost, counted, finding, saving, total
from diagnose.watched.waiting import MORE_WORKERS, known_epochs

HALF: Shares = (0.5, 0.5, 0.5)  # Of evaluations, if half of them are made.

MOSTLY_AT_EPOCHS = 0.8
"""Share of the pauses that are at ends of epochs, from which on they are said to be (our choice)."""

LEAST_PAUSES, MOST_APART = 5, 1.5
"""Of pauses that come at a period at least; how many more or fewer than at that period there may be at any time (our
choice): 40 that come by chance are three more or fewer now and then."""


def evaluation(log: RunLog) -> list[RunFinding]:
    """What evaluating half as often saves: whether to is for the user to say."""
    spent, count = _part(log, RunPartKind.EVALUATION)
    if count < 2:
        return []
    often = f"{_times(count, 'evaluation')} of {duration(spent / count)}, one every {steps_of(log) / count:,.0f} steps"
    return finding(
        RunFindingKind.EVALUATION,
        f"Evaluation takes {share(spent, log.length_ns)} of the run",
        (
            Evidence(f"{often}: {cost(spent, log)}.", spent, "ns", primary=True),
            f"Evaluating half as often would save {long_duration(spent / 2)}.",
        ),
        saving(spent, HALF, RunBasis.CHOICE),
        "Evaluate less often, or on a subset of the data.",
    )


def evaluation_data_wait(log: RunLog) -> list[RunFinding]:
    """Waiting for batches to evaluate on."""
    spent, _ = _part(log, RunPartKind.EVALUATION)
    waits = min(
        total(log.windows, "evaluation_loader") + sum(one.get("evaluation_loader", 0) for one in (log.start, log.last)),
        spent,
    )
    said = f"Evaluation waits for data {share(waits, spent)} of its time: {cost(waits, log)}."
    return finding(
        RunFindingKind.EVALUATION_DATA_WAIT,
        "Evaluation waits for data",
        (Evidence(said, waits, "ns", primary=True),),
        saving(waits, UNKNOWN, RunBasis.AT_MOST),
        f"{MORE_WORKERS} Keep the workers between evaluations: persistent_workers=True.",
    )


def checkpoints(log: RunLog) -> list[RunFinding]:
    """Saves that the training waits for: not one after the last step."""
    spent, count = total(log.windows, "save"), counted(log.windows, "save")
    if not count:
        return []
    longest = max(window.of("save").most_ns for window in log.windows)
    often = f"{_times(count, 'checkpoint')}, one every {steps_of(log) / count:,.0f} steps"
    said = f"{often}, {duration(spent / count)} each (up to {duration(longest)}): {cost(spent, log)}."
    return finding(
        RunFindingKind.CHECKPOINTS,
        "Training stops while a checkpoint is saved",
        (
            Evidence(said, spent, "ns", primary=True),
            "A background save still copies the state, and slows the steps that run concurrently.",
        ),
        saving(spent, BACKGROUND, RunBasis.RULE_OF_THUMB),
        "Save in the background (torch.distributed.checkpoint.async_save), or less often.",
    )


def outside(log: RunLog) -> list[RunFinding]:
    """Pauses between steps that are neither evaluation nor a checkpoint."""
    spent, count = total(log.windows, "outside"), counted(log.windows, "outside")
    if not count:
        return []
    at_epochs = _at_epochs(log) >= MOSTLY_AT_EPOCHS * count
    longest = max(window.of("outside").most_ns for window in log.windows)
    every = _every(log, count)
    where = (
        " at the ends of epochs"
        if at_epochs
        else f", one every {every:,.0f} steps"
        if every
        else " at irregular intervals"
    )
    said = f"{_times(count, 'pause')}{where}, {duration(spent / count)} each (up to {duration(longest)})"
    return finding(
        RunFindingKind.OUTSIDE,
        "Pauses at the ends of epochs" if at_epochs else "Pauses between steps",
        (
            Evidence(f"{said}: {cost(spent, log)}.", spent, "ns", primary=True),
            "The script neither evaluates nor saves a checkpoint then. The log does not show what it does.",
        ),
        saving(spent, UNKNOWN, RunBasis.AT_MOST),
        "Check what the script does there: logging, metrics, shuffling, copying files.",
    )


def _part(log: RunLog, kind: RunPartKind) -> tuple[int, int]:
    return next(((one.ns, one.count or 0) for one in parts(log) if one.kind is kind), (0, 0))


def _at_epochs(log: RunLog) -> int:
    begins = [one.began_ns for one in known_epochs(log)[1:]]
    return sum(
        min(window.of("outside").count, sum(window.began_ns <= at <= window.ended_ns for at in begins))
        for window in log.windows
        if window.of("outside").count
    )


def _every(log: RunLog, count: int) -> float | None:
    """Steps from one pause to the next, if they come so evenly that no window's end is far from it; else None."""
    if count < LEAST_PAUSES:
        return None
    every, steps, seen = sum(window.steps for window in log.windows) / count, 0, 0
    for window in log.windows:
        steps, seen = steps + window.steps, seen + window.of("outside").count
        if abs(seen - steps / every) > MOST_APART:
            return None
    return every


def _times(count: int, what: str) -> str:
    return f"{number(count)} {what}{'s' * (count != 1)}"
