"""The run in stretches of time: for a look at how it goes."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.contracts.watched_run import RunPartKind, RunSlice
from diagnose.facts.watched.windows import groups, quantile_ns, total
from diagnose.trace.run_log import RunLog, Window

MOST_SLICES, OF_MANY = 96, 24  # More are no wider than some pixels; of each of many ranks (our choice).
MANY = 16  # Ranks, beyond which each has fewer stretches: their JSON stays some MB (our choice).

COUNTED = ("read_bytes", "written_bytes", "faults", "cpu_s", "retries")
"""Ends of names of figures that count from the start of the process."""

COLUMNS = {
    RunPartKind.LOADER: "loader",
    RunPartKind.EVALUATION: "evaluation",
    RunPartKind.SAVE: "save",
    RunPartKind.COLLECTION: "collection",
    RunPartKind.START: "compilation",
    RunPartKind.RECORDING: "recording",
    RunPartKind.OUTSIDE: "outside",
}


def over_time(log: RunLog, evaluates_in_steps: bool, most: int = MOST_SLICES) -> tuple[RunSlice, ...]:
    """`evaluates_in_steps`: evaluation counts as training, as in the parts of the whole run."""
    return tuple(_slice(some, evaluates_in_steps) for some in groups(log.windows, most))


def _slice(windows: Sequence[Window], evaluates_in_steps: bool) -> RunSlice:
    steps = sum(window.timed for window in windows)
    spent = {kind: total(windows, name) for kind, name in COLUMNS.items()}
    inside = spent[RunPartKind.LOADER] + spent[RunPartKind.COLLECTION] + spent[RunPartKind.START]
    spent[RunPartKind.TRAINING] = max(total(windows, "step") - inside, 0)
    if evaluates_in_steps:
        spent[RunPartKind.TRAINING] += spent.pop(RunPartKind.EVALUATION)
    length_ns = windows[-1].ended_ns - windows[0].began_ns
    spent[RunPartKind.LOST] = max(length_ns - sum(spent.values()), 0)
    usual = total(windows, "step") - sum(window.excess_ns for window in windows)
    return RunSlice(
        began_ns=windows[0].began_ns,
        ended_ns=windows[-1].ended_ns,
        first_step=windows[0].first_step,
        steps=steps,
        parts={kind: ns for kind, ns in spent.items() if ns},
        step_ns=max(usual, 0) // max(steps, 1),
        p99_ns=quantile_ns([window.of("step") for window in windows], 0.99),
        figures={name: _figure(windows, name) for name in sorted({name for one in windows for name in one.gauges})},
    )


def _figure(windows: Sequence[Window], name: str) -> float:
    known = [window.gauges[name] for window in windows if name in window.gauges]
    if name.endswith(COUNTED):
        return known[-1].last
    return sum(one.count * one.mean for one in known) / max(sum(one.count for one in known), 1)
