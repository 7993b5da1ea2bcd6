"""The report of trials as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from diagnose.findings.trials import Both, Range, Report, Trial
from diagnose.trace import units

WIDTH = 100

VERDICTS = {
    "keep": "keep",
    "no_gain": "no gain",
    "slower": "slower",
    "changes_numbers": "changes numbers",
    "not_injected": "could not be injected",
    "out_of_memory": "out of memory",
    "inconclusive": "inconclusive",
}

LOSSES = {
    "same": "the same numbers in {count} steps",
    "rounding": "equal up to rounding in the first steps",
    "differ": "they differ: compare the training's results",
    "not_deterministic": "not comparable: two runs without a fix differ; set a seed",
}


def render(report: Report) -> str:
    """All of it, ending in a newline."""
    base = report.baseline
    lines = list[str]()
    if base is not None:
        differ = f"{base.arms} runs; equal runs differ by {base.noise_share:.1%}"
        lines += [f"Step time as it is: {_times(base.step_ns)} ({differ})", ""]
    for one in report.trials:
        lines += [*_trial(one), ""]
    if report.together is not None:
        lines += [*_trial(report.together), ""]
    if report.not_tried:
        lines.append("Not tried:")
        lines += [f"  {one.number}. {one.rule}: {one.why}." for one in report.not_tried]
        lines.append("")
    lines += [line for note in report.notes for line in textwrap.wrap(note, WIDTH)]
    lines.append(conclusion(report))
    return "\n".join(lines) + "\n"


def conclusion(report: Report) -> str:
    """The sentence that says what to keep."""
    kept = [one for one in report.trials if one.verdict == "keep"]
    if not kept:
        if not report.trials:
            return "No fix was tried."
        return "Keep the script as it is: no fix that was tried is shown to pay."
    best = report.together or max(kept, key=lambda one: one.measured.likely if one.measured else 0.0)
    several = len(kept) > 1 and (report.together is None or report.together.verdict != "keep")
    names = _listed([f"{one.numbers[0]} ({one.rule})" for one in kept])
    if several:
        return f"Keep {names}: each pays alone; together they were not measured, or do not pay."
    assert best.measured is not None
    assert report.baseline is not None
    now, then = report.baseline.step_ns.likely, report.baseline.step_ns.likely / best.measured.likely
    predicted = "" if best.predicted is None else f"; predicted {best.predicted.likely:.2f}x"
    return (
        f"Keep {names}: {units.duration(now)} -> {units.duration(then)} a step ({_factors(best.measured)}{predicted})."
    )


def brief(one: Trial) -> str:
    """One line on a fix, while others are still being tried."""
    measured = "" if one.measured is None else f"{_factors(one.measured)}, "
    return f"{one.rule}: {measured}{VERDICTS[one.verdict]}"


def _trial(one: Trial) -> Iterator[str]:
    name = " + ".join(map(str, one.numbers))
    yield f"{name}. {one.rule}: {VERDICTS[one.verdict].upper()}"
    rows = {
        "fix": one.fix,
        "injected": one.injected,
        "predicted": None if one.predicted is None else _factors(one.predicted),
        "measured": None
        if one.measured is None
        else _factors(one.measured) + f", {one.pairs} pairs of {one.steps} steps",
        "losses": None if one.losses is None else LOSSES[one.losses].format(count=one.losses_compared),
        "memory": None if one.peak_bytes is None else _both(one.peak_bytes, units.size),
        "warm-up": None if one.warmup_s is None else _both(one.warmup_s, lambda s: f"{s:.1f} s") + _pays(one),
        "because": one.why or None,
    }
    for label, text in rows.items():
        if text is not None:
            yield from textwrap.wrap(f"{label:<10} {text}", WIDTH, initial_indent="   ", subsequent_indent=" " * 14)


def _pays(one: Trial) -> str:
    return "" if one.pays_after_steps is None else f"; the fix has paid for it after {one.pays_after_steps:,} steps"


def _both(pair: Both, shown: Callable[[float], str]) -> str:
    return f"{shown(pair.without)} without, {shown(pair.with_)} with"


def _factors(found: Range) -> str:
    return f"{found.likely:.2f}x, {found.low:.2f} to {found.high:.2f}"


def _times(ns: Range) -> str:
    return f"{units.duration(ns.likely)}, {units.duration(ns.low)} to {units.duration(ns.high)}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
