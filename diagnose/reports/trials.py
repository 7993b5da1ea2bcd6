"""What trials have found, in words: for a terminal, and as rows that Markdown and the page share."""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from diagnose.contracts.ledger import LedgerReport, RuleTrials
from diagnose.contracts.trials import Baseline, Both, GpuState, Numbers, Range, Report, Trial
from diagnose.trace import units

WIDTH = 100

TITLE = "Measured fixes"  # Of its section in the run's report.

VERDICTS = {
    "keep": "keep",
    "no_gain": "no gain",
    "slower": "slower",
    "changes_numbers": "changes numbers",
    "not_injected": "could not be injected",
    "out_of_memory": "out of memory",
    "inconclusive": "inconclusive",
}

TWICE = 1.995  # As fast, as two decimals have it: from there on a factor is easier to read than a percentage.

CONFIRMS = {"keep": "confirmed", "inconclusive": "not confirmed yet", "no_gain": "not confirmed"}
"""Of all that is kept, in separate runs."""

LOSSES = {
    "same": "identical for {count} steps",
    "rounding": "equal up to rounding in the first steps",
    "differ": "different: check convergence",
    "not_deterministic": "not comparable: runs without a fix differ (set a seed)",
}


def render(report: Report, details: bool = False, width: int = WIDTH) -> str:
    """All of it, or the largest speed-ups in 25 lines at most; ending in a newline."""
    if not details:
        return "".join(f"{line}\n" for line in _in_brief(report, min(width, WIDTH)))
    base = report.baseline
    lines = list[str]()
    if base is not None:
        lines += [as_it_is(base), ""]
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


MOST_ROWS = 12  # Trials in a report without details.


def _in_brief(report: Report, width: int) -> Iterator[str]:
    yield from textwrap.wrap(conclusion(report), width, max_lines=4)
    if report.baseline is not None:
        yield from textwrap.wrap(f"{as_it_is(report.baseline)}.", width)
    ranked = sorted(report.trials, key=lambda one: -one.found.likely if one.found else 0.0)
    ranked = [*([] if report.together is None else [report.together]), *ranked]
    names = [units.clipped(name(one), 40) for one in ranked]
    for one, label in list(zip(ranked, names, strict=True))[:MOST_ROWS]:
        speed = "" if one.found is None else f"  {factors(one.found)}"
        why = f": {one.why}" if one.why else ""
        text = f"  {label:<{max(map(len, names))}}  {verdict(one)}{speed}{why}"
        yield units.clipped(text, width)
    if len(ranked) > MOST_ROWS:
        yield f"  {len(ranked) - MOST_ROWS} more fixes"
    if report.not_tried:
        others = "; ".join(f"{one.number}. {one.rule} ({one.why})" for one in report.not_tried)
        yield units.clipped(f"Not tried ({len(report.not_tried)}): {others}", width)
    yield from textwrap.wrap(" ".join(report.notes), width, max_lines=4)
    if report.trials:
        kept = "diagnose patch ... --kept writes the kept fixes as a diff; " if report.keep else ""
        yield from textwrap.wrap(f"Next: {kept}diagnose analyze ... --html FILE shows all measurements.", width)


def as_it_is(base: Baseline) -> str:
    """A sentence on the script without a fix, without its full stop."""
    which = f"{base.arms} runs" if base.arms else "blocks of one run"
    return f"Baseline step time: {_times(base.step_ns)} ({which}, noise {100 * base.noise_share:.1f} %)"


def conclusion(report: Report) -> str:
    """What to keep, and what is not known yet."""
    undecided = [trial for trial in report.trials if trial.verdict == "inconclusive"]
    open_ones = f"Undecided: {_listed(undecided)}." if undecided else ""
    kept = [trial for trial in report.trials if trial.verdict == "keep"]
    if kept:
        return f"{_to_keep(report, kept)} {open_ones}".rstrip()
    if not report.trials:
        return "No fix was tried."
    return open_ones or "Keep the script as it is: no tried fix shows a gain."


def _to_keep(report: Report, kept: Sequence[Trial]) -> str:
    together = report.together
    if together is not None and together.verdict == "slower":
        first = max(kept, key=lambda one: one.found.likely if one.found else 0.0)
        return f"Keep only {_listed([first])}: together, {_listed(kept)} are slower."
    best = together if together is not None and together.verdict == "keep" else kept[0]
    if len(kept) > 1 and best is not together:
        return f"Keep {_listed(kept)}: each is faster by itself. Together they are not confirmed yet."
    assert best.found is not None
    how = "" if best is together or best.measured_by == "runs" else ", in one run"
    if report.baseline is None:
        return f"Keep {_listed(kept)}: {factors(best.found)}{how}."
    now, then = report.baseline.step_ns.likely, report.baseline.step_ns.likely / best.found.likely
    predicted = "" if best.predicted is None else f"; predicted {speed_of(best.predicted.likely)}"
    per = "per step" if best.batch_factor == 1 else "for the same samples"
    times = f"{units.duration(now)} -> {units.duration(then)} {per}"
    return f"Keep {_listed(kept)}: {times}, {factors(best.found)}{predicted}{how}."


def brief(one: Trial) -> str:
    """One line on a fix, while others are still being tried."""
    measured = "" if one.found is None else f"{factors(one.found)}, "
    return f"{one.rule}: {measured}{verdict(one)}"


def verdict(one: Trial) -> str:
    """In words."""
    return CONFIRMS.get(one.verdict, VERDICTS[one.verdict]) if one.confirms else VERDICTS[one.verdict]


def name(one: Trial) -> str:
    """`1. dataloader_starvation`, or all of several that were combined."""
    numbers = " + ".join(map(str, one.numbers))
    return f"{numbers} in separate runs" if one.confirms else f"{numbers}. {one.rule}"


def rows(one: Trial) -> Iterator[tuple[str, str]]:
    """(what, value) of all that is known of a trial."""
    told = {
        "fix": one.fix,
        "injected": one.injected,
        "predicted": None if one.predicted is None else factors(one.predicted, "range"),
        "measured": None
        if one.measured is None
        else f"{factors(one.measured)}{_of_samples(one)}{'' if one.added else _pairs(one)}",
        "on top": None
        if one.added is None
        else f"{factors(one.added)} on top of {' + '.join(map(str, one.on_top_of))}{_pairs(one)}",
        "outputs": None if one.outputs is None else _apart(one.outputs, "model outputs for the same batch"),
        "updates": None if one.updates is None else _apart(one.updates, "parameter updates in one step"),
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
    yield f"{name(one)}: {verdict(one).upper()}"
    for label, text in rows(one):
        yield from textwrap.wrap(f"{label:<10} {text}", WIDTH, initial_indent="   ", subsequent_indent=" " * 14)


def _pairs(one: Trial) -> str:
    what = f"{one.steps}-step blocks in one run" if one.measured_by == "blocks" else f"runs of {one.steps} steps"
    return f", {one.pairs} pairs of {what}"


def _apart(found: Numbers, what: str) -> str:
    if found.kind == "same":
        return f"bit-identical {what}"
    said = {"not_deterministic": ", as do repeats without the fix", "rounding": ", within rounding"}.get(found.kind, "")
    return f"{what} differ by {found.typical:.1e} of their spread (max {found.largest:.1e}){said}"


def _gpu(state: GpuState) -> Iterator[str]:
    measures = ((state.sm_clock_mhz, "MHz"), (state.temperature_c, "°C"), (state.power_w, "W"))
    for both, unit in measures:
        if both is not None:
            yield _both(both, lambda value, unit=unit: f"{value:,.0f} {unit}")  # type: ignore[misc]


def _of_samples(one: Trial) -> str:
    return "" if one.batch_factor == 1 else f" per sample (batch {one.batch_factor}x as large)"


def _pays(one: Trial) -> str:
    return "" if one.pays_after_steps is None else f"; pays off after {one.pays_after_steps:,} steps"


def _both(pair: Both, shown: Callable[[float], str]) -> str:
    return f"{shown(pair.without)} without, {shown(pair.with_)} with"


def factors(found: Range, what: str = "95 % interval") -> str:
    """A speed-up with its interval: `60 % faster (95 % interval 36 to 75 %)`, and from 2 on `2.73x faster (...)`."""
    low, likely, high = found.low, found.likely, found.high
    if low < 1 < high:
        return f"{speed_of(likely)} ({what} {speed_of(low, 9)} to {speed_of(high, 9)})"
    if likely >= TWICE:
        return f"{speed_of(likely)} ({what} {low:.2f}x to {high:.2f}x)"
    ends = (low, high) if low >= 1 else (high, low)
    first, last = (speed_of(one, math.inf).rpartition(" % ")[0] for one in ends)
    return f"{speed_of(likely)} ({what} {first} to {last} %)"


def speed_ups(one: Trial) -> tuple[str, str]:
    """Predicted and measured; empty where there is none."""
    predicted = "" if one.predicted is None else factors(one.predicted, "range")
    return predicted, "" if one.found is None else factors(one.found)


def speed_of(factor: float, most: float = TWICE) -> str:
    """`7.3 % slower`, `60 % faster`, and as a factor from `most` on."""
    if factor >= most:
        return f"{factor:.2f}x faster"
    share = 100 * abs(factor - 1)
    return f"{share:.{int(share < 9.95)}f} % {'slower' if factor < 1 else 'faster'}"


def _times(ns: Range) -> str:
    return f"{units.duration(ns.likely)}, {units.duration(ns.low)} to {units.duration(ns.high)}"


def _listed(some: Sequence[Trial]) -> str:
    names = [f"{one.numbers[0]} ({one.rule})" for one in some]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


HEADS = ("rule", "trials", "measured", "compared", "in range", "median", "verdicts")

COLUMNS = (
    "Compared: trials precise enough to tell the predicted gain from none.",
    "In range: the measured speed-up lies within the predicted range.",
    "Median: measured gain divided by predicted gain (logarithms of speed-ups).",
)
"""What they are, a sentence each."""


def ledger_text(report: LedgerReport) -> str:
    """All of it, ending in a newline."""
    lines = list[str]()
    for device, some in groupby(report.rules, key=lambda one: one.device):
        lines += [f"On {device or 'an unknown device'}:", *_table(list(some)), ""]
    if report.rules:
        lines += [*COLUMNS, ""]
    lines += _about(report)
    parts = [part for line in lines for part in _wrapped(line)]
    if report.file is not None:
        parts.append(f"The file: {report.file}")
    return "\n".join(parts) + "\n"


def _wrapped(line: str) -> list[str]:
    return [line] if not line or line.startswith("  ") else textwrap.wrap(line, WIDTH)


def _table(some: Sequence[RuleTrials]) -> Iterator[str]:
    rows = [HEADS, *(_row(one) for one in some)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(HEADS))]
    for row in rows:
        first, *numbers, words = row
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=False))]
        yield "  " + "  ".join([*cells, words]).rstrip()


def _row(one: RuleTrials) -> tuple[str, ...]:
    return (
        one.rule,
        *map(str, (one.trials, one.measured, one.compared, one.held)),
        "-" if one.ratio_median is None else f"{one.ratio_median:.2f}",
        ", ".join(f"{count} {VERDICTS.get(verdict, verdict)}" for verdict, count in one.verdicts.items()),
    )


def _about(report: LedgerReport) -> Iterator[str]:
    if report.file is None:
        yield "The ledger is off (DIAGNOSE_NO_LEDGER), or you have no home folder."
        return
    if not report.entries:
        yield "The ledger is empty. Run `diagnose try` to fill it."
    if report.skipped:
        yield f"Unreadable lines, or from another version of diagnose: {report.skipped}."
