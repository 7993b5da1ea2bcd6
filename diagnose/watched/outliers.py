"""Steps that take over three times the usual one: how often, at which period, and what of them is longer."""

from collections import Counter

from msgspec import Struct

from diagnose.contracts.finding import Evidence
from diagnose.contracts.watched_run import RunBasis, RunFinding, RunFindingKind, RunSaving
from diagnose.trace.run_log import RunLog, Window
from diagnose.trace.units import duration, number
from diagnose.watched.pricing import SELDOM, UNKNOWN, CannotTell, cost, counted, finding, saving, total
from diagnose.watched.series import PARTS, REST

LEAST_OUTLIERS, REGULAR, MOSTLY = 5, 0.6, 0.2
"""Outliers, the share of them that must come at the period, and that of steps above which they are no outliers but
another kind of steps, or a machine that others use (our choice)."""

EXPLAINS = 0.5  # Of what an outlier takes beyond the usual step, the share from which on a part is why (our choice).

WHY = {
    "loader": "the training waits for data",
    "forward": "the forward pass is longer",
    "backward": "the backward pass is longer",
    "optimizer": "the optimizer step is longer",
    "collection": "Python collects garbage",
    "compilation": "code is compiled",
    REST: "other code in the loop takes longer",
}
WHAT_TO_DO = {
    "loader": "Load ahead (num_workers, prefetch_factor), and check what the dataset does in these steps.",
    "collection": "Collect manually every few hundred steps: gc.disable(), then gc.collect(). gc.freeze() helps too.",
    "compilation": "Set TORCH_LOGS=recompiles to find the cause, and mark sizes that vary as dynamic.",
    REST: "Check what the script does in these steps (logging, metrics, images, a scheduler). Do it less often.",
}
RECORD = "Record such steps: `diagnose watch` does so automatically if they come every 60 steps or more often."


class Outliers(Struct, frozen=True):
    """Those of a run."""

    count: int
    excess_ns: int  # What they take beyond usual steps.
    period_steps: int | None  # None: they come at no period.
    regular: float  # Share of them that came so many steps after the one before, by one step more or less.
    part: str  # Of PARTS or REST: what is longer in them; "" if that is not known.


def outliers(log: RunLog) -> Outliers | None:
    """None where there are none. Raises CannotTell."""
    count = sum(window.outliers for window in log.windows)
    if count > MOSTLY * sum(window.steps for window in log.windows):
        raise CannotTell("more than a fifth of the steps are outliers")
    if not count:
        return None
    period, regular = _period(log, count) if count >= LEAST_OUTLIERS else (None, 0.0)
    return Outliers(count, sum(window.excess_ns for window in log.windows), period, regular, _part(log))


def outlier_steps(log: RunLog, starts_ns: int) -> list[RunFinding]:
    """Those whose reason is no finding of its own; of waiting what is beyond that at beginnings of epochs.

    Raises CannotTell.
    """
    found = outliers(log)
    if found is None or found.part in ("collection", "compilation"):
        return []
    left = max(found.excess_ns - starts_ns * (found.part == "loader"), 0)
    every = f" every {number(found.period_steps)} steps" if found.period_steps else ""
    at = f", {100 * found.regular:.0f} % of them{every}" if every else ""
    steps, s = f"{number(found.count)} outlier step{'s' * (found.count != 1)}", "s" * (found.count == 1)
    return finding(
        RunFindingKind.OUTLIER_STEPS,
        f"Step-time spikes{every}",
        (
            Evidence(
                f"{steps} (over 3x the typical step{at}) take{s} {duration(found.excess_ns / found.count)} longer each:"
                f" {cost(left, log)}.",
                left,
                "ns",
                primary=True,
            ),
            why(found),
        ),
        saving(left, UNKNOWN, RunBasis.AT_MOST),
        WHAT_TO_DO.get(found.part, RECORD),
    )


def collection(log: RunLog) -> list[RunFinding]:
    """Collections of Python's garbage in steps."""
    spent, count = total(log.windows, "collection"), counted(log.windows, "collection")
    said = f"Python collects garbage in {number(count)} steps: {cost(spent, log)}."
    priced = saving(spent, SELDOM, RunBasis.RULE_OF_THUMB)
    kind, title = RunFindingKind.COLLECTION, "Python garbage collection pauses the training"
    return _in_steps(log, "collection", kind, title, Evidence(said, spent, "ns", primary=True), priced)


def compilation(log: RunLog) -> list[RunFinding]:
    """Compiling after the first step."""
    spent, count = total(log.windows, "compilation"), counted(log.windows, "compilation")
    said = f"torch.compile compiles in {number(count)} steps after the first: {cost(spent, log)}."
    priced = saving(spent, UNKNOWN, RunBasis.AT_MOST)
    kind, title = RunFindingKind.COMPILATION, "torch.compile compiles again after the first step"
    return _in_steps(log, "compilation", kind, title, Evidence(said, spent, "ns", primary=True), priced)


def _in_steps(
    log: RunLog, part: str, kind: RunFindingKind, title: str, said: Evidence, priced: RunSaving
) -> list[RunFinding]:
    return finding(kind, title, (said, _as_outliers(log, part)), priced, WHAT_TO_DO[part])


def why(found: Outliers) -> str:
    """A sentence."""
    return f"In these steps, {WHY[found.part]}." if found.part else "The log does not show which part takes longer."


def _as_outliers(log: RunLog, part: str) -> str:
    try:
        found = outliers(log)
    except CannotTell:
        return ""
    if found is None or found.part != part:
        return ""
    every = f" every {number(found.period_steps)} steps" if found.period_steps else ""
    return f"This causes step-time spikes (over 3x the typical step){every}."


def _period(log: RunLog, count: int) -> tuple[int | None, float]:
    """The commonest distance between outliers, by one step more or less, if most have it."""
    gaps = Counter[int]()
    for window in log.windows:
        gaps.update(dict(window.gaps))
    near = {gap: sum(gaps[gap + off] for off in (-1, 0, 1)) for gap in gaps if gap > 1}
    if not near:
        return None, 0.0
    period = max(near, key=lambda gap: (near[gap], gaps[gap], -gap))
    regular = min(near[period] / max(count - 1, 1), 1.0)
    return (period, regular) if regular >= REGULAR else (None, regular)


def _part(log: RunLog) -> str:
    """What most of the longest outliers' time beyond the usual step is, window by window.

    Waiting is told of these steps. Of other parts the longest of each window is: likely it was in the same step.
    """
    beyond, by_part = 0.0, dict.fromkeys(PARTS, 0.0)
    for window in log.windows:
        if not window.outliers or not window.timed:
            continue
        usual = (window.of("step").sum_ns - window.excess_ns) / window.timed
        longest = max(window.longest, key=lambda one: one.step_ns, default=None)
        step_ns = window.of("step").most_ns if longest is None else longest.step_ns
        excess = step_ns - usual
        if excess <= 0:
            continue
        beyond += excess
        for part in PARTS:
            waited = longest.loader_ns if part == "loader" and longest is not None else window.of(part).most_ns
            by_part[part] += max(min(waited - _mean(window, part), excess), 0)
    if not beyond:
        return ""
    part, most = max(by_part.items(), key=lambda pair: pair[1])
    if most >= EXPLAINS * beyond:
        return part
    return REST if sum(by_part.values()) < EXPLAINS * beyond else ""


def _mean(window: Window, part: str) -> float:
    column = window.of(part)
    return (column.sum_ns - column.most_ns) / max(window.timed - 1, 1) if column.count else 0.0
