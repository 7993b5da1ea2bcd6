"""What is said of a watched run."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.contracts.watched_run import SCHEMA_VERSION, Attempt, Figure, PhaseTime, RankRun, WatchedRun
from diagnose.facts.watched.windows import evaluates_in_steps, quantile_ns, saved_steps, steps_of
from diagnose.rulekit.engine import RuleSet
from diagnose.trace.run_log import COLUMNS, RunLog
from diagnose.version import __version__
from diagnose.watched.findings import findings
from diagnose.watched.over_time import MANY, MOST_SLICES, OF_MANY, over_time
from diagnose.watched.parts import epochs, parts


def watched_run(logs: Sequence[RunLog], earlier: Sequence[RunLog] = (), rules: RuleSet | None = None) -> WatchedRun:
    """Of all ranks, one at least. `earlier`: attempts of the first one, in order. Raises RuleError."""
    most = MOST_SLICES if len(logs) <= MANY else OF_MANY
    ranks = tuple(rank_run(log, most) for log in logs)
    found, others = findings(logs, earlier, rules)
    return WatchedRun(SCHEMA_VERSION, __version__, ranks, found, others, tuple(map(_attempt, earlier)))


def _attempt(log: RunLog) -> Attempt:
    start_ns = log.start.get("step", 0)
    return Attempt(log.started_unix_ns, log.length_ns, steps_of(log), log.ended, saved_steps(log), start_ns)


def rank_run(log: RunLog, most_slices: int = MOST_SLICES) -> RankRun:
    """Of one rank."""
    return RankRun(
        rank=log.rank,
        world_size=log.world_size,
        started_unix_ns=log.started_unix_ns,
        ended=log.ended,
        length_ns=log.length_ns,
        steps=steps_of(log),
        steps_by=log.steps_by,
        parts=parts(log),
        phases=tuple(one for name in COLUMNS if (one := _phase(log, name)) is not None),
        epochs=epochs(log),
        epochs_left_out=sum(window.more_epochs for window in log.windows),
        figures=tuple(_figure(log, name) for name in sorted({name for one in log.windows for name in one.gauges})),
        files=log.files,
        damaged=log.damaged,
        over_time=over_time(log, evaluates_in_steps(log), most_slices),
    )


def _phase(log: RunLog, name: str) -> PhaseTime | None:
    columns = [window.columns[name] for window in log.windows if name in window.columns]
    if not columns:
        return None
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
