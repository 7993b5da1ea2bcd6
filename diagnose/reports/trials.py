"""What trials have found, in words: for a terminal, and as rows that Markdown and the page share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from diagnose.contracts.trials import Baseline, Both, GpuState, Numbers, Range, Report, Trial
from diagnose.trace import units

WIDTH = 100

TITLE = "What trying fixes has shown"  # Of its section in the run's report.

VERDICTS = {
    "keep": "keep",
    "no_gain": "no gain",
    "slower": "slower",
    "changes_numbers": "changes numbers",
    "not_injected": "could not be injected",
    "out_of_memory": "out of memory",
    "inconclusive": "inconclusive",
}

CONFIRMED = "What is kept, in runs of its own against the script as it is:"

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
        lines += [as_it_is(base), ""]
    for one in report.trials:
        lines += [*_trial(one), ""]
    if report.together is not None:
        lines += [CONFIRMED, *_trial(report.together), ""]
    if report.not_tried:
        lines.append("Not tried:")
        lines += [f"  {one.number}. {one.rule}: {one.why}." for one in report.not_tried]
        lines.append("")
    lines += [line for note in report.notes for line in textwrap.wrap(note, WIDTH)]
    lines.append(conclusion(report))
    return "\n".join(lines) + "\n"


def as_it_is(base: Baseline) -> str:
    """A sentence on the script without a fix, without its full stop."""
    which = f"{base.arms} runs; equal runs" if base.arms else "blocks of one run, which"
    differ = f"{which} differ by {base.noise_share:.1%}"
    return f"Step time as it is: {_times(base.step_ns)} ({differ})"


def conclusion(report: Report) -> str:
    """What to keep, and what is not known yet."""
    undecided = [trial for trial in report.trials if trial.verdict == "inconclusive"]
    open_ones = f"Undecided: {_listed(undecided)}; the reasons stand above." if undecided else ""
    kept = [trial for trial in report.trials if trial.verdict == "keep"]
    if kept:
        return f"{_to_keep(report, kept)} {open_ones}".rstrip()
    if not report.trials:
        return "No fix was tried."
    return open_ones or "Keep the script as it is: no fix that was tried is shown to pay."


def _to_keep(report: Report, kept: Sequence[Trial]) -> str:
    best = report.together or kept[0]
    if best.verdict != "keep" or (len(kept) > 1 and report.together is None):
        how = "in blocks of one run" if all(one.measured_by == "blocks" for one in kept) else "alone"
        if len(kept) > 1:
            return f"Keep {_listed(kept)}: each pays {how}; together they were not measured, or do not pay."
        return f"Keep {_listed(kept)}: it pays {how}; in runs of its own it was not measured, or does not pay."
    assert best.found is not None
    if report.baseline is None:
        return f"Keep {_listed(kept)}: {factors(best.found)}."
    now, then = report.baseline.step_ns.likely, report.baseline.step_ns.likely / best.found.likely
    predicted = "" if best.predicted is None else f"; predicted {best.predicted.likely:.2f}x"
    per = "a step" if best.batch_factor == 1 else "for as many samples"
    times = f"{units.duration(now)} -> {units.duration(then)} {per}"
    return f"Keep {_listed(kept)}: {times} ({factors(best.found)}{predicted})."


def brief(one: Trial) -> str:
    """One line on a fix, while others are still being tried."""
    measured = "" if one.found is None else f"{factors(one.found)}, "
    return f"{one.rule}: {measured}{VERDICTS[one.verdict]}"


def name(one: Trial) -> str:
    """`1. dataloader_starvation`, or all of several that were combined."""
    return f"{' + '.join(map(str, one.numbers))}. {one.rule}"


def rows(one: Trial) -> Iterator[tuple[str, str]]:
    """(what, value) of all that is known of a trial."""
    told = {
        "fix": one.fix,
        "injected": one.injected,
        "predicted": None if one.predicted is None else factors(one.predicted),
        "measured": None
        if one.measured is None
        else f"{factors(one.measured)}{_of_samples(one)}{'' if one.added else _pairs(one)}",
        "on top": None
        if one.added is None
        else f"{factors(one.added)} on top of {' + '.join(map(str, one.on_top_of))}{_pairs(one)}",
        "outputs": None if one.outputs is None else _apart(one.outputs, "of the model for the same batch"),
        "updates": None if one.updates is None else _apart(one.updates, "of parameters in one step of copies"),
        "losses": None if one.losses is None else LOSSES[one.losses].format(count=one.losses_compared),
        "memory": None if one.peak_bytes is None else _both(one.peak_bytes, units.size),
        "warm-up": None if one.warmup_s is None else _both(one.warmup_s, lambda s: f"{s:.1f} s") + _pays(one),
        "GPU": None if one.gpu is None else "; ".join(_gpu(one.gpu)),
        "because": one.why or None,
    }
    return ((what, text) for what, text in told.items() if text is not None)


def all_of(report: Report) -> list[Trial]:
    """Those of single fixes, then that of several."""
    return [*report.trials, *([] if report.together is None else [report.together])]


def _trial(one: Trial) -> Iterator[str]:
    yield f"{name(one)}: {VERDICTS[one.verdict].upper()}"
    for label, text in rows(one):
        yield from textwrap.wrap(f"{label:<10} {text}", WIDTH, initial_indent="   ", subsequent_indent=" " * 14)


def _pairs(one: Trial) -> str:
    blocks = "blocks in one run, each " if one.measured_by == "blocks" else ""
    return f", {one.pairs} pairs of {blocks}{'of ' if blocks else ''}{one.steps} steps"


def _apart(found: Numbers, what: str) -> str:
    if found.kind == "same":
        return f"the same bits {what}"
    said = {"not_deterministic": "; equal ones differ as much", "rounding": ", which is rounding"}.get(found.kind, "")
    return f"{what[3:]}: {found.typical:.1e} of their spread apart, at most {found.largest:.1e}{said}"


def _gpu(state: GpuState) -> Iterator[str]:
    measures = ((state.sm_clock_mhz, "MHz"), (state.temperature_c, "°C"), (state.power_w, "W"))
    for both, unit in measures:
        if both is not None:
            yield _both(both, lambda value, unit=unit: f"{value:,.0f} {unit}")  # type: ignore[misc]


def _of_samples(one: Trial) -> str:
    return "" if one.batch_factor == 1 else f" of a sample's time (batches {one.batch_factor} times as large)"


def _pays(one: Trial) -> str:
    return "" if one.pays_after_steps is None else f"; the fix has paid for it after {one.pays_after_steps:,} steps"


def _both(pair: Both, shown: Callable[[float], str]) -> str:
    return f"{shown(pair.without)} without, {shown(pair.with_)} with"


def factors(found: Range) -> str:
    """A speed-up with its interval: `2.91x, 2.09 to 4.04`."""
    return f"{found.likely:.2f}x, {found.low:.2f} to {found.high:.2f}"


def _times(ns: Range) -> str:
    return f"{units.duration(ns.likely)}, {units.duration(ns.low)} to {units.duration(ns.high)}"


def _listed(some: Sequence[Trial]) -> str:
    names = [f"{one.numbers[0]} ({one.rule})" for one in some]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
