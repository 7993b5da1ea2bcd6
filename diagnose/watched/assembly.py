"""What is said of a watched run: parts of its time that add up to it, the run in stretches, and findings."""

from collections.abc import Sequence

from diagnose.contracts.watched_run import (
    SCHEMA_VERSION,
    Attempt,
    Epoch,
    Figure,
    PhaseTime,
    RankRun,
    RunPart,
    RunPartKind,
    RunSlice,
    WatchedRun,
)
from diagnose.facts.watched.log import (
    RunFacts,
    counted,
    evaluates_in_steps,
    evaluations,
    groups,
    quantile_ns,
    saved_steps,
    steps_of,
    total,
)
from diagnose.facts.watched.steps import known_epochs
from diagnose.rulekit.engine import RuleSet
from diagnose.trace.run_log import COLUMNS, EpochTime, RunLog, Window
from diagnose.version import __version__
from diagnose.watched.findings import findings

MOST_SLICES, OF_MANY = 96, 24  # More are no wider than some pixels; of each of many ranks (our choice).
MANY = 16  # Ranks, beyond which each has fewer stretches: their JSON stays some MB (our choice).
COUNTED = ("read_bytes", "written_bytes", "faults", "cpu_s", "retries")
"""Ends of names of figures that count from the start of the process."""
PART_COLUMNS = {
    RunPartKind.LOADER: "loader",
    RunPartKind.EVALUATION: "evaluation",
    RunPartKind.SAVE: "save",
    RunPartKind.COLLECTION: "collection",
    RunPartKind.START: "compilation",
    RunPartKind.RECORDING: "recording",
    RunPartKind.OUTSIDE: "outside",
}


def watched_run(logs: Sequence[RunLog], earlier: Sequence[RunLog] = (), rules: RuleSet | None = None) -> WatchedRun:
    """The analysis of the logs of all ranks, one at least. `earlier`: the first rank's attempts. Raises RuleError."""
    most = MOST_SLICES if len(logs) <= MANY else OF_MANY
    ranks = tuple(rank_run(log, most) for log in logs)
    found, others = findings(RunFacts(logs, earlier), rules)
    return WatchedRun(SCHEMA_VERSION, __version__, ranks, found, others, tuple(map(_attempt, earlier)))


def _attempt(log: RunLog) -> Attempt:
    start_ns = log.start.get("step", 0)
    return Attempt(log.started_unix_ns, log.length_ns, steps_of(log), log.ended, saved_steps(log), start_ns)


def rank_run(log: RunLog, most_slices: int = MOST_SLICES) -> RankRun:
    """One rank's run by its log: parts, phases, epochs, figures, and at most `most_slices` stretches."""
    return RankRun(
        rank=log.rank,
        world_size=log.world_size,
        started_unix_ns=log.started_unix_ns,
        ended=log.ended,
        length_ns=log.length_ns,
        steps=steps_of(log),
        steps_by=log.steps_by,
        parts=parts(log),
        phases=tuple(_phase(log, name) for name in COLUMNS if any(name in window.columns for window in log.windows)),
        epochs=tuple(map(_epoch, known_epochs(log))),
        epochs_left_out=sum(window.more_epochs for window in log.windows),
        figures=tuple(_figure(log, name) for name in sorted({name for one in log.windows for name in one.gauges})),
        files=log.files,
        damaged=log.damaged,
        over_time=over_time(log, most_slices),
    )


def parts(log: RunLog) -> tuple[RunPart, ...]:
    """Where the time of the run goes, the largest part first. What the log has lost is a part as well."""
    windows, start, last, known = log.windows, log.start, log.last, known_epochs(log)
    spent, saves = _spent(windows, evaluates_in_steps(log)), [one["save"] for one in (start, last) if one.get("save")]
    spent[RunPartKind.EVALUATION], evaluated = evaluations(log)
    spent[RunPartKind.SAVE] += sum(saves)
    spent[RunPartKind.START] += start.get("step", 0)
    spent[RunPartKind.RECORDING] += last.get("recording", 0)
    spent[RunPartKind.OUTSIDE] += last.get("step", 0)
    spent[RunPartKind.LOST] = log.length_ns - sum(spent.values())
    recorded = counted(windows, "recording")
    counts = {
        RunPartKind.TRAINING: steps_of(log) - 1 - recorded,
        RunPartKind.EVALUATION: evaluated,
        RunPartKind.SAVE: counted(windows, "save") + len(saves),
        RunPartKind.RECORDING: recorded,
    }
    in_first = {RunPartKind.LOADER: known[0].loader_ns} if len(known) > 1 and known[0].first_step <= 1 else {}
    made = [RunPart(kind, ns, counts.get(kind), in_first.get(kind)) for kind, ns in spent.items() if ns > 0]
    return tuple(sorted(made, key=lambda part: -part.ns))


def _spent(windows: Sequence[Window], evaluates_in_steps: bool) -> dict[RunPartKind, int]:
    """ns by kind in these windows; what steps take besides loading, collection and compiling is TRAINING."""
    spent = {RunPartKind.TRAINING: 0} | {kind: total(windows, name) for kind, name in PART_COLUMNS.items()}
    inside = spent[RunPartKind.LOADER] + spent[RunPartKind.COLLECTION] + spent[RunPartKind.START]
    spent[RunPartKind.TRAINING] = max(total(windows, "step") - inside, 0)
    if evaluates_in_steps:
        spent[RunPartKind.TRAINING] += spent.pop(RunPartKind.EVALUATION)
    return spent


def over_time(log: RunLog, most: int = MOST_SLICES) -> tuple[RunSlice, ...]:
    """The run in at most `most` stretches of about equal time, in order, from the end of the first step on."""
    in_steps = evaluates_in_steps(log)
    return tuple(_slice(some, _spent(some, in_steps)) for some in groups(log.windows, most))


def _slice(windows: Sequence[Window], spent: dict[RunPartKind, int]) -> RunSlice:
    """A stretch of consecutive windows. `spent`, as of `_spent`, gets what the log has lost."""
    steps = sum(window.timed for window in windows)
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
        figures={name: _mean(windows, name) for name in sorted({name for one in windows for name in one.gauges})},
    )


def _mean(windows: Sequence[Window], name: str) -> float:
    """A figure's mean over the windows; its latest value if it counts from the start of the process."""
    known = [window.gauges[name] for window in windows if name in window.gauges]
    if name.endswith(COUNTED):
        return known[-1].last
    return sum(one.count * one.mean for one in known) / max(sum(one.count for one in known), 1)


def _epoch(one: EpochTime) -> Epoch:
    return Epoch(one.first_step, one.began_ns, one.steps, one.step_ns // one.steps, one.loader_ns // one.steps)


def _phase(log: RunLog, name: str) -> PhaseTime:
    columns = [window.columns[name] for window in log.windows if name in window.columns]
    return PhaseTime(
        phase=name,
        ns=sum(one.sum_ns for one in columns),
        count=sum(one.count for one in columns),
        least_ns=min(one.least_ns for one in columns),
        most_ns=max(one.most_ns for one in columns),
        median_ns=quantile_ns(columns, 0.5),
        p99_ns=quantile_ns(columns, 0.99),
    )


def _figure(log: RunLog, name: str) -> Figure:
    known = [window.gauges[name] for window in log.windows if name in window.gauges]
    looks = sum(one.count for one in known)
    mean = sum(one.mean * one.count for one in known) / max(looks, 1)
    least, most = min(one.least for one in known), max(one.most for one in known)
    return Figure(name, known[0].mean, mean, least, most, known[-1].last)
