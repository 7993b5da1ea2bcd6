"""The published tables of benchmarks/trials_measured.json, and what is counted for them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from benchmarks.accuracy_tables import table
from benchmarks.trials.nothing import replay
from benchmarks.trials.planted import figure, usual
from benchmarks.trials.results import Found, Measured, Nothing, Row, Runs, Tried
from benchmarks.verdicts import Figure
from diagnose.statistics import DECIDED
from diagnose.trace import units

SHORT_NS = 5e6  # Steps below that are short: a small disturbance is a large share of them.

DASH = "-"

NOTHING, UNMEASURED = (DASH, "0 of 0", "0 on 0"), "not measured"
"""Values of the summary that rest on nothing, and what stands for them."""

Way = Callable[[Tried], Found | None]
WAYS: tuple[Way, ...] = (lambda row: row.blocks, lambda row: row.runs, lambda row: row.short)  # As WHERE says.
WORTH = 0.05  # A true gain or loss from which on a trial ought to decide, and a claim of nothing counts (trials.md).


def overlaps(one: Figure | None, other: Figure | None) -> bool:
    """Whether two intervals have something in common."""
    return one is not None and other is not None and one.low <= other.high and other.low <= one.high


def contradicted(verdict: str, truth: Figure | None) -> bool:
    """Whether the verdict says faster where the truth says slower, or the other way round."""
    return truth is not None and {"keep": truth.high < 1, "slower": truth.low > 1}.get(verdict, False)


def error(said: Figure | None, truth: Figure | None) -> float | None:
    """Of a speed-up, as a share of the true one."""
    return None if said is None or truth is None else said.likely / truth.likely - 1


def summary(found: Measured) -> str:
    """All in short."""
    planted = [one for one in found.planted if one.tried]
    steps = [one.step_ns / one.true_step_ns - 1 for one in planted if one.step_ns and one.true_step_ns]
    lines = [
        ["planted faults whose fix `try` can inject", f"{len(planted)} of {len(found.planted)}"],
        ["error of the predicted speed-up, median", _error((one.predicted, one.truth) for one in planted)],
        ["width of the true interval, median", _width(one.truth for one in planted)],
        ["step as it is, against the true one, median", f"{median(steps):+.1%}" if steps else DASH],
        ["an equal run takes beyond its timed steps, median", _median((one.overhead_s for one in found.runs), "s")],
    ]
    columns = [list(_of_way(found, way)) for way in WAYS]
    columns[0] += _of_nothing([(row.step_ns, row.blocks) for row in found.nothing])
    columns[1] += _of_nothing([(median(row.arms_ns), replayed(row)) for row in found.runs])
    columns[2] += _of_nothing([])
    by_way = [[some[0][0], *(value for _, value in some)] for some in zip(*columns, strict=True)]
    head = table(["", ""], _told(lines))
    return f"{head}\n\n{table(['', *WHERE], _told(by_way))}"


def _told(lines: Iterable[Sequence[str]]) -> list[list[str]]:
    return [[name, *(UNMEASURED if value.startswith(NOTHING) else value for value in some)] for name, *some in lines]


def _of_way(found: Measured, way: Way) -> Iterator[tuple[str, str]]:
    planted = [(row, one) for row in found.planted if (one := way(row)) is not None]
    harmful = [(row, one) for row in found.harmful if (one := way(row)) is not None]
    groups = {
        "the interval meets the true one": planted,
        "... where the injection makes just the change of the switch": [one for one in planted if one[0].same_change],
        "... where it makes another change, against the same fault": [one for one in planted if not one[0].same_change],
        "... where steps are under 5 ms": [one for one in planted if (one[0].step_ns or SHORT_NS) < SHORT_NS],
    }
    same = next(some for name, some in groups.items() if "just" in name)
    worth = [(row, one) for row, one in (*planted, *harmful) if row.truth and abs(row.truth.likely - 1) > WORTH]
    yield "decided, where the truth is over 5 %", _of(one.decided for _, one in worth)
    yield "the interval holds the truth", _of(_holds(one.measured, row.truth) for row, one in (*planted, *harmful))
    yield "verdicts that the truth contradicts", _of(contradicted(o.verdict, r.truth) for r, o in (*planted, *harmful))
    for name, some in groups.items():
        yield name, _of(overlaps(one.measured, row.truth) for row, one in some)
    yield "width of the interval, median", _width(one.measured for _, one in planted)
    yield "error of the measured speed-up, median, same change", _error((one.measured, row.truth) for row, one in same)
    decided = [one.seconds for _, one in (*planted, *harmful) if one.decided]
    yield "a decided fix takes, with the start, median", _median(decided, "s")
    yield "... at most", f"{max(decided):.0f} s" if decided else DASH
    yield "harmful fixes reported as slower", _of(one.verdict == "slower" for _, one in harmful)


def _holds(measured: Figure | None, truth: Figure | None) -> bool:
    return measured is not None and truth is not None and measured.low <= truth.likely <= measured.high


def _of_nothing(some: Sequence[tuple[float, Sequence[Found]]]) -> Iterator[tuple[str, str]]:
    short = [(step_ns, found) for step_ns, found in some if step_ns < SHORT_NS]
    for name, rows in (("", some), (", steps under 5 ms", short)):
        said = [one for _, found in rows for one in found]
        yield f"trials of nothing{name}", f"{len(said)} on {len(rows)} healthy controls"
        claims = [one for one in said if one.verdict in ("keep", "slower")]
        yield f"... that claim a gain or a loss{name}", _share(len(claims), len(said))
        beyond = [one for one in claims if one.measured and abs(one.measured.likely - 1) > WORTH]
        yield f"... of over 5 %{name}", _share(len(beyond), len(said))


def replayed(row: Runs) -> list[Found]:
    """The trials of nothing that these runs would have made, by the present protocol."""
    made = replay(row.arms_ns, usual(row.ranks))
    return [Found(one.verdict, one.why, one.pairs, figure(one.measured), 0.0) for one in made]


def planted(rows: Sequence[Tried]) -> str:
    """A line for each fault whose fix was tried."""
    head = ["fault", "rule", "injected", "the switch makes", "step", "predicted", "truth", *_HEAD]
    lines = [
        [
            _named(row),
            f"`{row.rule}`",
            f"`{row.injection}`",
            "the same" if row.same_change else row.switch,
            _time(row.step_ns),
            *map(_figure, (row.predicted, row.truth)),
            *_ways(row),
        ]
        for row in rows
        if row.tried
    ]
    return table(head, lines, texts=4)


WHERE = ("in one process", "in fresh processes", "script of 2 s")
_HEAD = [word for where in WHERE for word in (where, "meets the truth", "verdict, time")]


def _ways(row: Tried) -> Iterator[str]:
    for one in (way(row) for way in WAYS):
        if one is None:
            yield from (DASH, DASH, DASH)
            continue
        why = f": {one.why}".replace("|", "/") if one.why and not one.decided else ""
        yield _figure(one.measured)
        yield "yes" if overlaps(one.measured, row.truth) else "no"
        yield f"{one.verdict.replace('_', ' ')}, {one.seconds:.0f} s{why}"


def untried(rows: Sequence[Tried]) -> str:
    """Why the fixes of the other faults are not tried, and of how many."""
    whys = Counter(row.why for row in rows if not row.tried)
    return table(["not tried, because", "faults"], [[why, str(count)] for why, count in whys.most_common()])


def harmful(rows: Sequence[Tried]) -> str:
    """A line for each fault that was injected."""
    lines = [[_named(row), f"`{row.injection}`", _time(row.step_ns), _figure(row.truth), *_ways(row)] for row in rows]
    return table(["fixed case", "injected", "step", "truth", *_HEAD], lines, texts=2)


def nothing(rows: Sequence[Nothing]) -> str:
    """A line for each healthy control in which switches did nothing."""
    return _controls(
        [(row.case, row.step_ns, row.blocks, f"{row.blocks[0].seconds:.0f} s") for row in rows], "each takes"
    )


def runs(rows: Sequence[Runs]) -> str:
    """A line for each healthy control that ran again and again."""
    some = [(row.case, median(row.arms_ns), replayed(row), str(len(row.arms_ns))) for row in rows]
    return _controls(some, "runs")


def _controls(rows: Sequence[tuple[str, float, Sequence[Found], str]], last: str) -> str:
    lines = []
    for case, step_ns, some, told in sorted(rows, key=lambda row: row[1]):
        verdicts = Counter(one.verdict if one.decided else "" for one in some)
        counts = [str(verdicts[name]) for name in (*DECIDED, "")]
        lines.append([f"`{case}`", _time(step_ns), _width(one.measured for one in some), *counts, told])
    return table(["control", "step", "width of the interval", "keep", "slower", "no gain", "inconclusive", last], lines)


def machine(found: Measured) -> str:
    """On what it was measured."""
    one = found.machine
    return f"Machine: {one.cpu}, {one.cores} cores, torch {one.torch}." if one else "Nothing has been measured yet."


def line(row: Row) -> str:
    """A row, while others are measured."""
    if isinstance(row, Runs):
        return f"{row.case}: {len(row.arms_ns)} runs, {row.overhead_s:.1f} s beyond timed steps"
    if isinstance(row, Nothing):
        return f"{row.case}: {dict(Counter(one.verdict for one in row.blocks))}, {row.blocks[0].seconds:.0f} s each"
    if not row.tried:
        return f"{row.case} {row.level} {row.fault}: not tried: {row.why}"
    return f"{row.case} {row.level}: {row.injection}: truth {_figure(row.truth)}, {', '.join(_ways(row))}"


def _named(row: Tried) -> str:
    return f"`{row.case}`, {row.level}{f', {row.fault}' if row.fault else ''}"


def _of(some: Iterable[bool]) -> str:
    known = list(some)
    return _share(sum(known), len(known))


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def _median(some: Iterable[float], unit: str) -> str:
    known = list(some)
    return f"{median(known):.1f} {unit}" if known else DASH


def _error(pairs: Iterable[tuple[Figure | None, Figure | None]]) -> str:
    errors = [abs(off) for said, truth in pairs if (off := error(said, truth)) is not None]
    return f"{median(errors):.1%}" if errors else DASH


def _width(some: Iterable[Figure | None]) -> str:
    widths = [one.high / one.low - 1 for one in some if one is not None]
    return f"{median(widths):.1%}" if widths else DASH


def _figure(said: Figure | None) -> str:
    return DASH if said is None else f"{said.likely:.2f}x ({said.low:.2f} to {said.high:.2f})"


def _time(ns: float | None) -> str:
    return DASH if ns is None else units.duration(ns)
