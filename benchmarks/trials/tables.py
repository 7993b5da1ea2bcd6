"""The published tables of benchmarks/trials_measured.json, and what is counted for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from benchmarks.accuracy_tables import table
from benchmarks.trials.equal import CLAIMS
from benchmarks.trials.results import Equal, Harmful, Measured, Planted
from benchmarks.verdicts import Figure
from diagnose.trace import units

SHORT_NS = 5e6
"""Steps below that are short: a small disturbance is a large share of them."""

PACE_NS = (30e6, 70e6)
"""Steps of about 50 ms: what their trials take is published."""

DASH = "-"

NOTHING, UNMEASURED = (DASH, "0 of 0", "0 on 0 healthy controls"), "not measured"
"""Values of the summary that rest on nothing, and what stands for them."""


def overlaps(row: Planted | Harmful) -> bool:
    """Whether the interval that `try` measured and the true one have something in common."""
    measured, truth = row.measured, row.truth
    return measured is not None and truth is not None and measured.low <= truth.high and truth.low <= measured.high


def contradicted(row: Planted | Harmful) -> bool:
    """Whether the verdict says faster where the truth says slower, or the other way round."""
    truth = row.truth
    return truth is not None and {"keep": truth.high < 1, "slower": truth.low > 1}.get(row.verdict or "", False)


def error(said: Figure | None, truth: Figure | None) -> float | None:
    """Of a speed-up, as a share of the true one."""
    return None if said is None or truth is None else said.likely / truth.likely - 1


def step_ns(row: Equal) -> float:
    """The median over arms."""
    return median(row.arms_ns)


def summary(found: Measured) -> str:
    """All in short."""
    tried = [one for one in found.planted if one.tried]
    groups = {
        "the injection makes just the change of the switch": [one for one in tried if one.same_change],
        "it makes another change, against the same fault": [one for one in tried if not one.same_change],
        "steps are under 5 ms": [one for one in tried if one.step_ns is not None and one.step_ns < SHORT_NS],
    }
    lines = [["planted faults whose fix `try` can inject", f"{len(tried)} of {len(found.planted)}"]]
    lines.append(["verdict keep", _of(one.verdict == "keep" for one in tried)])
    judged: list[Planted | Harmful] = [*tried, *found.harmful]
    lines.append(["verdicts that the truth contradicts", _of(map(contradicted, judged))])
    lines.append(["the interval meets the true one", _of(map(overlaps, tried))])
    lines += [[f"... where {name}", _of(map(overlaps, some))] for name, some in groups.items()]
    same = next(iter(groups.values()))
    lines.append(["width of the interval, median", _median_width(one.measured for one in tried)])
    lines.append(["width of the true interval, median", _median_width(one.truth for one in tried)])
    lines.append(["error of the measured speed-up, median, same change", _median_error(same, lambda one: one.measured)])
    lines.append(["error of the predicted speed-up, median, all", _median_error(tried, lambda one: one.predicted)])
    steps = [one.step_ns / one.true_step_ns for one in tried if one.step_ns and one.true_step_ns]
    apart = f"{median(steps) - 1:+.1%}" if steps else DASH
    lines.append(["step as it is, against the true one, median", apart])
    lines.append(["harmful fixes reported as slower", _of(one.verdict == "slower" for one in found.harmful)])
    lines += _equal(found.equal)
    lines += _times(found)
    return table(["", ""], [[what, UNMEASURED if value in NOTHING else value] for what, value in lines])


def _equal(rows: Sequence[Equal]) -> list[list[str]]:
    short = [row for row in rows if step_ns(row) < SHORT_NS]
    lines = []
    for name, some in (("", rows), (", steps under 5 ms", short)):
        verdicts = Counter(claim.verdict for one in some for claim in one.claims)
        count = verdicts.total()
        lines.append([f"trials of nothing{name}", f"{count} on {len(some)} healthy controls"])
        lines.append([f"... that claim a gain{name}", f"{verdicts['keep']} of {count}"])
        lines.append([f"... that claim a loss{name}", f"{verdicts['slower']} of {count}"])
    replayed, wrong = sum(row.replayed for row in rows), sum(row.replayed_claims for row in rows)
    lines.append(["replayed without a limit of time: claims of either", f"{wrong} of {replayed}"])
    return lines


def _times(found: Measured) -> list[list[str]]:
    took = [
        one.took_s
        for one in found.planted
        if one.took_s is not None and one.step_ns is not None and PACE_NS[0] <= one.step_ns <= PACE_NS[1]
    ]
    overhead = [one.overhead_s for one in found.equal]
    paced = f"{min(took):.0f} to {max(took):.0f} s ({len(took)} measured)" if took else DASH
    return [
        ["a trial of one fix, steps of 30 to 70 ms, takes", paced],
        ["an arm takes beyond its timed steps, median", f"{median(overhead):.1f} s" if overhead else DASH],
    ]


def planted(rows: Sequence[Planted]) -> str:
    """A line for each fault whose fix was tried."""
    head = ["fault", "rule", "injected", "the switch makes", "step", "predicted", "measured", "truth"]
    head += ["meet", "error", "verdict", "took"]
    lines = [
        [
            _named(row),
            f"`{row.rule}`",
            f"`{row.injection}`",
            "the same" if row.same_change else row.switch,
            _time(row.step_ns),
            *map(_figure, (row.predicted, row.measured, row.truth)),
            "yes" if overlaps(row) else "no",
            _signed(error(row.measured, row.truth)),
            _verdict(row),
            DASH if row.took_s is None else f"{row.took_s:.0f} s",
        ]
        for row in rows
        if row.tried
    ]
    return table(head, lines, texts=4)


def untried(rows: Sequence[Planted]) -> str:
    """Why the fixes of the other faults are not tried, and of how many."""
    whys = Counter(row.why for row in rows if not row.tried)
    return table(["not tried, because", "faults"], [[why, str(count)] for why, count in whys.most_common()])


def harmful(rows: Sequence[Harmful]) -> str:
    """A line for each fault that was injected."""
    lines = [
        [
            f"`{row.case}`, {row.level}",
            f"`{row.injection}`",
            _time(row.step_ns),
            *map(_figure, (row.measured, row.truth)),
            "yes" if overlaps(row) else "no",
            _signed(error(row.measured, row.truth)),
            row.verdict.replace("_", " "),
        ]
        for row in rows
    ]
    return table(["fixed case", "injected", "step", "measured", "truth", "meet", "error", "verdict"], lines, texts=2)


def controls(rows: Sequence[Equal]) -> str:
    """A line for each healthy control."""
    lines = []
    for row in sorted(rows, key=step_ns):
        verdicts = Counter(claim.verdict for claim in row.claims)
        other = len(row.claims) - sum(verdicts[name] for name in (*CLAIMS, "no_gain"))
        counts = [str(verdicts[name]) for name in (*CLAIMS, "no_gain")]
        width = _median_width(claim.measured for claim in row.claims)
        lines.append([f"`{row.case}`", _time(step_ns(row)), str(len(row.arms_ns)), width, *counts, str(other)])
    head = ["control", "step", "runs", "width of the interval", "keep", "slower", "no gain", "inconclusive"]
    return table(head, lines)


def machine(found: Measured) -> str:
    """On what it was measured."""
    one = found.machine
    return (
        "Nothing has been measured yet."
        if one is None
        else f"Machine: {one.cpu}, {one.cores} cores, torch {one.torch}."
    )


def line(row: Planted | Harmful | Equal) -> str:
    """A row, while others are measured."""
    if isinstance(row, Equal):
        verdicts = Counter(claim.verdict for claim in row.claims)
        return f"{row.case}: {dict(verdicts)}, {len(row.arms_ns)} arms, {row.overhead_s:.1f} s beyond timed steps"
    if isinstance(row, Planted) and not row.tried:
        return f"{row.case} {row.level} {row.fault}: not tried: {row.why}"
    told = f"measured {_figure(row.measured)}, truth {_figure(row.truth)}, meet: {overlaps(row)}"
    return f"{row.case} {row.level}: {row.injection}: {row.verdict}, {told} {row.why}"


def _named(row: Planted) -> str:
    return f"`{row.case}`, {row.level}{f', {row.fault}' if row.fault else ''}"


def _verdict(row: Planted) -> str:
    said = (row.verdict or DASH).replace("_", " ")
    return f"{said}: {row.why}".replace("|", "/") if row.verdict != "keep" and row.why else said


def _of(some: Iterable[bool]) -> str:
    known = list(some)
    return f"{sum(known)} of {len(known)}"


def _median_error(rows: Sequence[Planted], of: Callable[[Planted], Figure | None]) -> str:
    errors = [abs(found) for row in rows if (found := error(of(row), row.truth)) is not None]
    return f"{median(errors):.1%}" if errors else DASH


def _median_width(some: Iterable[Figure | None]) -> str:
    widths = [one.high / one.low - 1 for one in some if one is not None]
    return f"{median(widths):.1%}" if widths else DASH


def _signed(share: float | None) -> str:
    return DASH if share is None else f"{share:+.1%}"


def _figure(said: Figure | None) -> str:
    return DASH if said is None else f"{said.likely:.2f}x ({said.low:.2f} to {said.high:.2f})"


def _time(ns: float | None) -> str:
    return DASH if ns is None else units.duration(ns)
