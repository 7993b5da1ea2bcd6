"""A run that is not over: what it has been so far, and its pace now against that at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from diagnose.contracts.watched_run import NotFound, RankRun, RunFinding, RunPart
from diagnose.facts.watched.windows import counted, quantile_ns, total
from diagnose.trace.run_log import RunLog, Window
from diagnose.watched.assembly import rank_run
from diagnose.watched.findings import of_rank
from diagnose.watched.parts import parts

PERIOD_NS = 120_000_000_000  # What is at first, and what is now; of a run below six minutes a third (our choice).
LATEST = 64  # Windows that are kept: one is complete each second at most, and logs are read more often (our choice).


class Pace(Struct, frozen=True):
    """Of the steps of some windows in a row."""

    steps: int
    length_ns: int  # From the end of the step before them to that of their last, with all that is between steps.
    mean_ns: int
    loader_ns: int  # Of a mean step, waiting for data.
    median_ns: int | None
    p99_ns: int | None


class RankNow(Struct, frozen=True):
    """A rank, as its log was when it was read last."""

    run: RankRun
    ended: tuple[RunPart, ...]
    """Parts of the time up to the end of the last step: that which comes after may become any of them."""
    findings: tuple[RunFinding, ...]  # As far as its log goes, those first that would save most.
    not_found: tuple[NotFound, ...]
    first: Pace | None  # None where all is now, or no step is known but the first.
    now: Pace | None
    since_last_step_ns: int  # When the log was written.
    step_times: tuple[tuple[int, int], ...]  # Of the whole run: buckets, as of a Column, and their counts.
    latest: tuple[Window, ...]  # LATEST at most; the last one may not be complete.

    @property
    def rank(self) -> int:
        """Its number."""
        return self.run.rank


def rank_now(log: RunLog) -> RankNow:
    """What a log says by now."""
    windows = [window for window in log.windows if window.of("step").count]
    first = now = None
    if windows:
        period_ns = min(PERIOD_NS, (windows[-1].ended_ns - windows[0].began_ns) // 3)
        now = _pace(_last_of(windows, period_ns))
        first = _pace(_first_of(windows, period_ns)) if len(windows) > 1 else None
    upto_ns = log.windows[-1].ended_ns if log.windows else log.length_ns
    step_times = Counter[int]()
    for window in windows:
        step_times.update(dict(window.of("step").buckets))
    found, others = of_rank(log)
    return RankNow(
        run=rank_run(log),
        findings=found,
        not_found=others,
        ended=parts(replace(log, last={}, length_ns=upto_ns)),
        first=first,
        now=now,
        since_last_step_ns=log.length_ns - upto_ns,
        step_times=tuple(sorted(step_times.items())),
        latest=log.windows[-LATEST:],
    )


def _first_of(windows: Sequence[Window], period_ns: int) -> Sequence[Window]:
    until_ns = windows[0].began_ns + period_ns
    return windows[: 1 + sum(window.ended_ns < until_ns for window in windows)]


def _last_of(windows: Sequence[Window], period_ns: int) -> Sequence[Window]:
    from_ns = windows[-1].ended_ns - period_ns
    return windows[-1 - sum(window.began_ns > from_ns for window in windows) :]


def _pace(windows: Sequence[Window]) -> Pace:
    columns, steps = [window.of("step") for window in windows], counted(windows, "step")
    return Pace(
        steps=steps,
        length_ns=windows[-1].ended_ns - windows[0].began_ns,
        mean_ns=total(windows, "step") // steps,
        loader_ns=total(windows, "loader") // steps,
        median_ns=quantile_ns(columns, 0.5),
        p99_ns=quantile_ns(columns, 0.99),
    )
