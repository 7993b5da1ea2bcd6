"""A run that is not over: what it has been so far, and its pace now against that at first."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from diagnose.contracts.watched_run import NotFound, RankRun, RunFinding, RunPart
from diagnose.facts.watched.log import RunFacts, counted, quantile_ns, total
from diagnose.reports import watched_run
from diagnose.rulekit.engine import RuleSet
from diagnose.trace.run_log import RunLog, Window
from diagnose.trace.units import duration, long_duration, number, share, size, three_digits
from diagnose.watched.assembly import parts, rank_run
from diagnose.watched.findings import findings

PERIOD_NS = 120_000_000_000  # What is at first, and what is now; of a run below six minutes a third (our choice).
LATEST = 64  # Windows that are kept: one is complete each second at most, and logs are read more often (our choice).


class Pace(Struct, frozen=True):
    """How fast steps are in some consecutive windows of the log."""

    steps: int
    length_ns: int  # From the end of the step before them to that of their last, with all that is between steps.
    mean_ns: int
    loader_ns: int  # Of a mean step, waiting for data.
    median_ns: int | None
    p99_ns: int | None


class RankNow(Struct, frozen=True):
    """A rank, as its log was when it was read last."""

    run: RankRun
    ended: tuple[RunPart, ...]  # Up to the last step's end: what kind of time comes after is not known.
    findings: tuple[RunFinding, ...]  # As far as its log goes, those first that would save most.
    not_found: tuple[NotFound, ...]
    first: Pace | None  # None where all is now, or no step is known but the first.
    now: Pace | None
    since_last_step_ns: int  # When the log was written.
    step_times: tuple[tuple[int, int], ...]  # Of the whole run: (bucket as of a Column, steps in it).
    latest: tuple[Window, ...]  # LATEST at most; the last one may not be complete.

    @property
    def rank(self) -> int:
        """Its number."""
        return self.run.rank


def rank_now(log: RunLog, rules: RuleSet | None = None) -> RankNow:
    """A rank by its log so far: findings by `rules` (None: all), and its pace at first and now. Raises RuleError."""
    windows = [window for window in log.windows if window.of("step").count]
    first = now = None
    if windows:
        period_ns = min(PERIOD_NS, (windows[-1].ended_ns - windows[0].began_ns) // 3)
        until_ns, from_ns = windows[0].began_ns + period_ns, windows[-1].ended_ns - period_ns
        now = _pace(windows[-1 - sum(window.began_ns > from_ns for window in windows) :])
        if len(windows) > 1:
            first = _pace(windows[: 1 + sum(window.ended_ns < until_ns for window in windows)])
    upto_ns = log.windows[-1].ended_ns if log.windows else log.length_ns
    step_times = Counter[int]()
    for window in windows:
        step_times.update(dict(window.of("step").buckets))
    found, others = findings(RunFacts([log]), rules, alone=True)
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


def _pace(windows: Sequence[Window]) -> Pace:
    """The pace in consecutive windows, each of which has timed steps."""
    columns, steps = [window.of("step") for window in windows], counted(windows, "step")
    return Pace(
        steps=steps,
        length_ns=windows[-1].ended_ns - windows[0].began_ns,
        mean_ns=total(windows, "step") // steps,
        loader_ns=total(windows, "loader") // steps,
        median_ns=quantile_ns(columns, 0.5),
        p99_ns=quantile_ns(columns, 0.99),
    )


MOST_FINDINGS = 3  # In the panel (our choice).
MOST_RANKS = 12  # That are shown one by one: of more, the slowest (our choice).
STALLED_S, STALLED_STEPS = 10, 10  # Seconds, and usual steps, without a step, that are shown (our choice).


def rows(ranks: Sequence[RankNow]) -> Iterator[tuple[str, str]]:
    """(name, text) rows of the panel, of the first rank; at the end median steps by rank, if there are several."""
    one = ranks[0]
    yield "so far", _so_far(one)
    if one.now is not None:
        yield "step", _step(one)
        if _waits(one):
            yield "waiting for data", _compared(one, lambda pace: share(pace.loader_ns, pace.mean_ns)) + " of a step"
    yield "time", watched_run.headline(one.run)
    figures = {figure.name: figure for figure in one.run.figures}
    memory = [name for name in ("resident_bytes", "children_resident_bytes", "allocated_bytes") if name in figures]
    if memory:
        yield "memory", ", ".join(f"{watched_run.FIGURES[name]} {size(figures[name].last)}" for name in memory)
    device = [name for name in ("sm_clock_mhz", "temperature_c", "power_w") if name in figures]
    if device:
        told = [f"{watched_run.FIGURES[name]} {three_digits(figures[name].last)}" for name in device]
        slowed = "slowed" in figures and figures["slowed"].last
        yield "GPU", "; ".join([*told, *(["throttled by heat or power"] if slowed else [])])
    for found in one.findings[:MOST_FINDINGS]:
        yield "finding", finding(found)
    if len(ranks) > 1:
        yield "median steps", _median_steps(ranks)


def line(ranks: Sequence[RankNow]) -> str:
    """The most important of `rows`, as one line."""
    one = ranks[0]
    told = [_so_far(one)]
    if one.now is not None:
        told.append(f"step: {_step(one)}")
        if _waits(one):
            told.append(f"waiting for data {share(one.now.loader_ns, one.now.mean_ns)} of a step")
    for figure in one.run.figures:
        if figure.name == "resident_bytes":
            told.append(f"{watched_run.FIGURES[figure.name]} {size(figure.last)}")
    if len(ranks) > 1:
        told.append(f"median steps: {_median_steps(ranks)}")
    return "; ".join(told)


def finding(one: RunFinding) -> str:
    """A finding's title and its first evidence, as two sentences."""
    return f"{one.title}. {one.evidence[0].text}"


def _so_far(one: RankNow) -> str:
    """How many steps in how much time, and whether they have stopped; the steps per second otherwise."""
    count, stalled_ns = one.run.steps, one.since_last_step_ns
    text = f"{number(count)} step{'' if count == 1 else 's'} in {long_duration(one.run.length_ns)}"
    usual_ns = (one.now and one.now.median_ns) or 0
    if stalled_ns > max(STALLED_S * 1e9, STALLED_STEPS * usual_ns):
        text += f", none for {long_duration(stalled_ns)}"
    elif one.now is not None and one.now.length_ns:
        text += f", {three_digits(one.now.steps / one.now.length_ns * 1e9)} steps/s now"
    return text if one.run.world_size == 1 else f"{text} (rank {one.rank} of {one.run.world_size})"


def _waits(one: RankNow) -> bool:
    return any(pace is not None and pace.loader_ns for pace in (one.first, one.now))


def _step(one: RankNow) -> str:
    def usual(pace: Pace) -> str:
        return f"median {duration(pace.median_ns or pace.mean_ns)}, p99 {duration(pace.p99_ns or pace.mean_ns)}"

    return _compared(one, usual)


def _compared(one: RankNow, told: Callable[[Pace], str]) -> str:
    """What `told` says of the pace now, with that of the pace at first behind it, if there is one."""
    assert one.now is not None
    return told(one.now) + (f" (at first {told(one.first)})" if one.first is not None else "")


def _median_steps(ranks: Sequence[RankNow]) -> str:
    known = [(one.now.median_ns or one.now.mean_ns, one.rank) for one in ranks if one.now is not None]
    kept = known if len(known) <= MOST_RANKS else sorted(known, reverse=True)[:MOST_RANKS]
    times = ", ".join(f"rank {rank} {duration(ns)}" for ns, rank in kept)
    return times if len(kept) == len(known) else f"{times}; {len(known) - len(kept)} others are faster"
