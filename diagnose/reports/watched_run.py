"""A watched run in words and tables, for the terminal and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnose.contracts.watched_run import (
    Figure,
    GrowingMemory,
    GrowingSteps,
    PeriodicOutliers,
    PhaseTime,
    RankRun,
    RunPart,
    RunPartKind,
    SlowFirstEpoch,
    Trend,
    TrendKind,
    WatchedRun,
)
from diagnose.reports.sections import Row, Section
from diagnose.trace.units import duration, number, share, size, three_digits

TRENDS = "What only the whole run shows"

KINDS = {
    RunPartKind.TRAINING: "training steps",
    RunPartKind.LOADER: "waiting for data",
    RunPartKind.EVALUATION: "evaluation",
    RunPartKind.SAVE: "checkpoints",
    RunPartKind.COLLECTION: "Python garbage collection",
    RunPartKind.START: "start-up and compilation",
    RunPartKind.RECORDING: "recorded steps",
    RunPartKind.OUTSIDE: "outside of steps",
    RunPartKind.LOST: "not in the log",
}

PHASES = {
    "step": "step",
    "loader": "waiting for data",
    "forward": "forward (host)",
    "backward": "backward (host)",
    "optimizer": "optimizer (host)",
    "collection": "garbage collection",
    "compilation": "compilation",
    "save": "checkpoint",
    "evaluation": "evaluation",
    "evaluation_loader": "  of it, for data",
    "recording": "recorded steps",
    "outside": "outside of steps",
    "device": "step on the device",
}

ENDINGS = {
    "itself": "it ended by itself",
    "interrupted": "it was interrupted",
    "crashed": "it ended with an error",
    None: "it was killed, or still runs",
}

FOUND_BY = {
    "optimizer": "optimizer steps",
    "backward": "backward passes",
    "loader": "batches that were asked for",
    "call": "calls of the model",
}

FIGURES = {
    "resident_bytes": "resident memory",
    "children_resident_bytes": "resident memory of workers",
    "read_bytes": "read from storage",
    "children_read_bytes": "read from storage by workers",
    "written_bytes": "written to storage",
    "children_written_bytes": "written to storage by workers",
    "major_faults": "major page faults",
    "minor_faults": "minor page faults",
    "cpu_s": "CPU time, s",
    "allocated_bytes": "allocated on the device",
    "most_allocated_bytes": "most allocated on the device",
    "reserved_bytes": "reserved on the device",
    "allocator_retries": "allocator retries",
    "sm_clock_mhz": "SM clock, MHz",
    "temperature_c": "temperature, °C",
    "power_w": "power, W",
    "slowed": "slowed by heat or power",
}

SOUGHT = {
    TrendKind.GROWING_STEPS: "a growing step time",
    TrendKind.GROWING_MEMORY: "growing memory",
    TrendKind.PERIODIC_OUTLIERS: "periodic outlier steps",
    TrendKind.SLOW_FIRST_EPOCH: "a slow first epoch",
}

MOST_EPOCHS = 8
"""Rows: the first ones, and the last."""

ALL = 0.95
"""Share that is called all of it (our choice)."""


def headline(run: RankRun) -> str:
    """Where the time went, in one sentence. Shares add up to 100 %."""
    told = [
        f"{KINDS[part.kind]} {tenths / 10:.1f} %{_where(part)}"
        for part, tenths in zip(run.parts, _tenths(run.parts), strict=True)
    ]
    return f"Of {long_duration(run.length_ns)}: {', '.join(told)}."


def subject(found: WatchedRun) -> str:
    """What the sentence is of."""
    run = found.ranks[0]
    by = FOUND_BY.get(run.steps_by or "", "")
    said = f"{number(run.steps)} steps{f', found by {by}' if by else ''}; {ENDINGS.get(run.ended, ENDINGS[None])}."
    if run.world_size == 1:
        return said
    return f"Rank {run.rank} of {run.world_size}; {len(found.ranks)} have a log. {said}"


def damage(run: RankRun) -> str:
    """What is to be known of a damaged log; empty of a whole one."""
    if not run.damaged:
        return ""
    places = "1 place" if run.damaged == 1 else f"{run.damaged} places"
    return f"The log is damaged in {places}: what was there is left out."


def trends(run: RankRun) -> list[str]:
    """A sentence or two for each, then what was looked for and is not there, and what could not be looked for."""
    clean = [SOUGHT[one.kind] for one in run.not_found if not one.why]
    unknown = dict[str, list[str]]()
    for one in run.not_found:
        if one.why:
            unknown.setdefault(one.why, []).append(SOUGHT[one.kind])
    return [
        *(_trend(one, run) for one in run.trends),
        *([f"Looked for, and not there: {', '.join(clean)}."] if clean else []),
        *(f"Cannot tell {', '.join(some)}: {why}." for why, some in unknown.items()),
    ]


def sections(run: RankRun) -> Iterator[Section]:
    """The tables, the most important first."""
    rows = [
        Row(
            KINDS[part.kind],
            (long_duration(part.ns), f"{tenths / 10:.1f} %", _count(part)),
            part.ns / max(run.length_ns, 1),
        )
        for part, tenths in zip(run.parts, _tenths(run.parts), strict=True)
    ]
    yield Section("Where the run's time went", ("", "time", "share", "how many"), tuple(rows))
    if run.phases:
        columns = ("", "total", "steps with it", "mean", "median", "p99", "longest")
        note = "Without the first step. Times on the host do not wait for the device."
        yield Section("Steps", columns, tuple(map(_phase, run.phases)), note)
    if len(run.epochs) > 1:
        kept = run.epochs if len(run.epochs) <= MOST_EPOCHS else (*run.epochs[: MOST_EPOCHS - 1], run.epochs[-1])
        epochs = [
            Row(
                f"from step {number(one.first_step)}",
                (number(one.steps), duration(one.step_ns), duration(one.loader_ns)),
            )
            for one in kept
        ]
        yield Section("Epochs", ("", "steps", "mean step", "waiting for data"), tuple(epochs), _more(run, len(kept)))
    if run.figures:
        figures = [_figure(one) for one in sorted(run.figures, key=_place)]
        yield Section("Process and device", ("", "at first", "mean", "most", "at last"), tuple(figures))


def _more(run: RankRun, shown: int) -> str:
    more = len(run.epochs) + run.epochs_left_out - shown
    return f"{number(more)} more epochs are not shown." if more else ""


def long_duration(ns: float) -> str:
    """As people say it: 3 h 12 min, 12 min 3 s; below a minute as `duration`."""
    if ns < 60e9:
        return duration(ns)
    seconds = round(ns / 1e9)
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"


def _tenths(parts: Sequence[RunPart]) -> list[int]:
    """Shares in tenths of a percent, rounded so that they add up to 1000 (by the largest remainders)."""
    whole = sum(part.ns for part in parts)
    exact = [1000 * part.ns / max(whole, 1) for part in parts]
    found = [int(one) for one in exact]
    order = sorted(range(len(parts)), key=lambda at: found[at] - exact[at])
    for at in order[: 1000 - sum(found)] if whole else []:
        found[at] += 1
    return found


def _where(part: RunPart) -> str:
    if not part.first_epoch_ns or part.ns < 1e9:
        return ""
    return " (all of it in the first epoch)" if part.first_epoch_ns >= ALL * part.ns else ""


def _count(part: RunPart) -> str:
    return "" if part.count is None else number(part.count)


def _phase(one: PhaseTime) -> Row:
    mean = one.ns / max(one.count, 1)
    cells = (one.ns, mean, one.median_ns, one.p99_ns, one.most_ns)
    total, *others = ("" if value is None else duration(value) for value in cells)
    return Row(PHASES[one.phase], (total, number(one.count), *others))


def _figure(one: Figure) -> Row:
    told = size if one.name.endswith("_bytes") else three_digits
    return Row(FIGURES.get(one.name, one.name), tuple(map(told, (one.first, one.mean, one.most, one.last))))


def _place(one: Figure) -> int:
    return list(FIGURES).index(one.name) if one.name in FIGURES else len(FIGURES)


def _trend(one: Trend, run: RankRun) -> str:
    if isinstance(one, GrowingSteps):
        return (
            f"Steps take longer the longer the run lasts: {duration(one.first_ns)} at first,"
            f" {duration(one.last_ns)} at the end, {duration(one.per_1000_steps_ns)} more each 1,000 steps."
            f" That costs {_cost(one.cost_ns, run)}."
        )
    if isinstance(one, PeriodicOutliers):
        return (
            f"Every {number(one.period_steps)} steps one is an outlier, over three times the usual step:"
            f" {number(one.outliers)} outlier steps, {100 * one.regular:.0f} % at that period,"
            f" cost {_cost(one.cost_ns, run)}."
        )
    if isinstance(one, SlowFirstEpoch):
        longer, waits = one.step_ns - one.later_step_ns, one.loader_ns - one.later_loader_ns
        why = " Most of that is waiting for data: a cold file cache or the like." if 2 * waits > longer else ""
        return (
            f"Steps of the first epoch take {duration(one.step_ns)}, later ones {duration(one.later_step_ns)}."
            f" That costs {_cost(one.cost_ns, run)}.{why}"
        )
    assert isinstance(one, GrowingMemory)
    return (
        f"Resident memory grows to the end: from {size(one.first_bytes)} to {size(one.last_bytes)},"
        f" {size(one.per_1000_steps_bytes)} each 1,000 steps."
    )


def _cost(ns: int, run: RankRun) -> str:
    return f"{long_duration(ns)} ({share(ns, run.length_ns)} of the run)"
