"""What trials, the ledger and patches have to say of fixes, in words: for a terminal, Markdown and the page."""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, zip_longest

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.contracts.ledger import LedgerReport, RuleTrials
from diagnose.contracts.patches import FixByHand, Patch, PatchedFix
from diagnose.contracts.trials import Baseline, Both, GpuState, Numbers, Range, Report, Trial
from diagnose.reports.words import listed, safety
from diagnose.trace import units

WIDTH = 100
MOST_ROWS = 12  # Trials in a report without details.

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

TWICE = 1.995  # Speed-up that two decimals show as 2.00: from here on it is written as a factor, not in percent.

CONFIRMS = {"keep": "confirmed", "inconclusive": "not confirmed yet", "no_gain": "not confirmed"}
"""Words for verdicts on all kept fixes together, measured again in separate runs."""

LOSSES = {
    "same": "identical for {count} steps",
    "rounding": "equal up to rounding in the first steps",
    "differ": "different: check convergence",
    "not_deterministic": "not comparable: runs without a fix differ (set a seed)",
}


def render(report: Report, details: bool = False, width: int = WIDTH) -> str:
    """All measurements, or without `details` the conclusion and the largest speed-ups in brief; ending in a newline."""
    if not details:
        return "".join(f"{line}\n" for line in _in_brief(report, min(width, WIDTH)))
    lines = [] if report.baseline is None else [as_it_is(report.baseline), ""]
    for one in all_of(report):
        lines += [*_trial(one), ""]
    if report.not_tried:
        lines += ["Not tried:", *(f"  {one.number}. {one.rule}: {one.why}." for one in report.not_tried), ""]
    lines += [line for note in report.notes for line in textwrap.wrap(note, WIDTH)]
    return "\n".join([*lines, conclusion(report)]) + "\n"


def _in_brief(report: Report, width: int) -> Iterator[str]:
    """The conclusion, the baseline, MOST_ROWS trials at most, those not tried, notes, and what to run next."""
    yield from textwrap.wrap(conclusion(report), width, max_lines=4)
    if report.baseline is not None:
        yield from textwrap.wrap(f"{as_it_is(report.baseline)}.", width)
    ranked = sorted(report.trials, key=lambda one: -one.found.likely if one.found else 0.0)
    ranked = [*([] if report.together is None else [report.together]), *ranked]
    names = [units.clipped(name(one), 40) for one in ranked]
    room = max(map(len, names), default=0)
    for one, label in list(zip(ranked, names, strict=True))[:MOST_ROWS]:
        speed = "" if one.found is None else f"  {factors(one.found)}"
        why = f": {one.why}" if one.why else ""
        yield units.clipped(f"  {label:<{room}}  {verdict(one)}{speed}{why}", width)
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
    likely, low, high = map(units.duration, (base.step_ns.likely, base.step_ns.low, base.step_ns.high))
    return f"Baseline step time: {likely}, {low} to {high} ({which}, noise {100 * base.noise_share:.1f} %)"


def conclusion(report: Report) -> str:
    """Sentences on which fixes to keep, and which are not decided yet."""
    if not report.trials:
        return "No fix was tried."
    undecided = [trial for trial in report.trials if trial.verdict == "inconclusive"]
    open_ones = f"Undecided: {_listed(undecided)}." if undecided else ""
    if kept := [trial for trial in report.trials if trial.verdict == "keep"]:
        return f"{_to_keep(report, kept)} {open_ones}".rstrip()
    return open_ones or "Keep the script as it is: no tried fix shows a gain."


def _to_keep(report: Report, kept: Sequence[Trial]) -> str:
    """A sentence on which fixes to keep, with their measured effect together."""
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
    now = report.baseline.step_ns.likely
    predicted = "" if best.predicted is None else f"; predicted {speed_of(best.predicted.likely)}"
    per = "per step" if best.batch_factor == 1 else "for the same samples"
    times = f"{units.duration(now)} -> {units.duration(now / best.found.likely)} {per}"
    return f"Keep {_listed(kept)}: {times}, {factors(best.found)}{predicted}{how}."


def brief(one: Trial) -> str:
    """One line on a fix, while others are still being tried."""
    measured = "" if one.found is None else f"{factors(one.found)}, "
    return f"{one.rule}: {measured}{verdict(one)}"


def verdict(one: Trial) -> str:
    """The verdict in words; of a trial that confirms kept fixes in separate runs in its own."""
    return CONFIRMS.get(one.verdict, VERDICTS[one.verdict]) if one.confirms else VERDICTS[one.verdict]


def name(one: Trial) -> str:
    """`1. dataloader_starvation`, or all of several that were combined."""
    numbers = " + ".join(map(str, one.numbers))
    return f"{numbers} in separate runs" if one.confirms else f"{numbers}. {one.rule}"


def rows(one: Trial) -> Iterator[tuple[str, str]]:
    """(what, value as text) of all that is known of a trial; what is not known is left out."""
    pairs, added = _pairs(one), " + ".join(map(str, one.on_top_of))
    samples = "" if one.batch_factor == 1 else f" per sample (batch {one.batch_factor}x as large)"
    pays = "" if one.pays_after_steps is None else f"; pays off after {one.pays_after_steps:,} steps"
    told = {
        "fix": one.fix,
        "injected": one.injected,
        "predicted": None if one.predicted is None else factors(one.predicted, "range"),
        "measured": None if one.measured is None else f"{factors(one.measured)}{samples}{'' if one.added else pairs}",
        "on top": None if one.added is None else f"{factors(one.added)} on top of {added}{pairs}",
        "outputs": None if one.outputs is None else _difference(one.outputs, "model outputs for the same batch"),
        "updates": None if one.updates is None else _difference(one.updates, "parameter updates in one step"),
        "losses": None if one.losses is None else LOSSES[one.losses].format(count=one.losses_compared),
        "memory": None if one.peak_bytes is None else _both(one.peak_bytes, units.size),
        "warm-up": None if one.warmup_s is None else _both(one.warmup_s, lambda s: f"{s:.1f} s") + pays,
        "GPU": None if one.gpu is None else "; ".join(_gpu(one.gpu)),
        "because": one.why or None,
    }
    return ((what, text) for what, text in told.items() if text is not None)


def all_of(report: Report) -> list[Trial]:
    """The trials of single fixes, then the one of several fixes together, if there is one."""
    return [*report.trials, *([] if report.together is None else [report.together])]


def _trial(one: Trial) -> Iterator[str]:
    yield f"{name(one)}: {verdict(one).upper()}"
    for label, text in rows(one):
        yield from textwrap.wrap(f"{label:<10} {text}", WIDTH, initial_indent="   ", subsequent_indent=" " * 14)


def _pairs(one: Trial) -> str:
    what = f"{one.steps}-step blocks in one run" if one.measured_by == "blocks" else f"runs of {one.steps} steps"
    return f", {one.pairs} pairs of {what}"


def _difference(found: Numbers, what: str) -> str:
    """How results with and without the fix differ, as a clause; `what`: outputs, updates or losses."""
    if found.kind == "same":
        return f"bit-identical {what}"
    said = {"not_deterministic": ", as do repeats without the fix", "rounding": ", within rounding"}.get(found.kind, "")
    return f"{what} differ by {found.typical:.1e} of their spread (max {found.largest:.1e}){said}"


def _gpu(state: GpuState) -> Iterator[str]:
    """Clock, temperature and power of the GPU without and with the fix, as far as known."""
    measures = ((state.sm_clock_mhz, "MHz"), (state.temperature_c, "°C"), (state.power_w, "W"))
    for both, unit in measures:
        if both is not None:
            yield _both(both, lambda value, unit=unit: f"{value:,.0f} {unit}")  # type: ignore[misc]


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
    """The predicted and the measured speed-up as text; empty where there is none."""
    predicted = "" if one.predicted is None else factors(one.predicted, "range")
    return predicted, "" if one.found is None else factors(one.found)


def speed_of(factor: float, most: float = TWICE) -> str:
    """`7.3 % slower`, `60 % faster`, and as a factor from `most` on."""
    if factor >= most:
        return f"{factor:.2f}x faster"
    share = 100 * abs(factor - 1)
    return f"{share:.{int(share < 9.95)}f} % {'slower' if factor < 1 else 'faster'}"


def _listed(some: Sequence[Trial]) -> str:
    return listed([f"{one.numbers[0]} ({one.rule})" for one in some])


HEADS = ("rule", "trials", "measured", "compared", "in range", "median", "verdicts")

COLUMNS = (
    "Compared: trials precise enough to tell the predicted gain from none.",
    "In range: the measured speed-up lies within the predicted range.",
    "Median: measured gain divided by predicted gain (logarithms of speed-ups).",
)
"""What some columns of HEADS mean, a sentence each."""


def ledger_text(report: LedgerReport) -> str:
    """The ledger as text: a table per device with a row per rule, and notes on the file. Ends in a newline."""
    lines = list[str]()
    for device, some in groupby(report.rules, key=lambda one: one.device):
        lines += [f"On {device or 'an unknown device'}:", *_rule_table(list(some)), ""]
    if report.rules:
        lines += [*COLUMNS, ""]
    if report.file is None:
        lines.append("The ledger is off (DIAGNOSE_NO_LEDGER), or you have no home folder.")
    elif not report.entries:
        lines.append("The ledger is empty. Run `diagnose try` to fill it.")
    if report.file is not None and report.skipped:
        lines.append(f"Unreadable lines, or from another version of diagnose: {report.skipped}.")
    parts = [
        part for line in lines for part in ([line] if line.startswith("  ") else textwrap.wrap(line, WIDTH) or [""])
    ]
    if report.file is not None:
        parts.append(f"The file: {report.file}")
    return "\n".join(parts) + "\n"


def _rule_table(some: Sequence[RuleTrials]) -> Iterator[str]:
    """Lines of a table with HEADS and a row per rule: numbers to the right, the rule and its verdicts to the left."""
    rows = [HEADS, *(_rule_row(one) for one in some)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(HEADS))]
    for row in rows:
        first, *numbers, words = row
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=False))]
        yield "  " + "  ".join([*cells, words]).rstrip()


def _rule_row(one: RuleTrials) -> tuple[str, ...]:
    return (
        one.rule,
        *map(str, (one.trials, one.measured, one.compared, one.held)),
        "-" if one.ratio_median is None else f"{one.ratio_median:.2f}",
        ", ".join(f"{count} {VERDICTS.get(verdict, verdict)}" for verdict, count in one.verdicts.items()),
    )


def patched(patch: Patch, diagnosis: Diagnosis) -> str:
    """What a patch does, beside its diff: each fix in it, fixes to make by hand, notes. Ends in a newline."""
    lines = [line for fix in patch.fixes for line in (*_patched(fix, diagnosis), "")]
    lines += ["Not in the diff:", ""] * bool(patch.by_hand)
    lines += [line for other in patch.by_hand for line in (*_by_hand(other), "")]
    lines += [line for note in patch.notes for line in textwrap.wrap(f"Note: {note}", WIDTH)]
    if patch.fixes:
        count, files = len(patch.fixes), len(patch.files)
        lines.append(f"The diff has {count} fix{'es' * (count > 1)} in {files} file{'s' * (files > 1)}.")
    else:
        nothing = "The diff is empty: see above for fixes by hand." if patch.by_hand else "There is no fix to make."
        lines.append(nothing)
    return "\n".join(lines) + "\n"


def _patched(one: PatchedFix, diagnosis: Diagnosis) -> Iterator[str]:
    """Lines on a fix in the diff: the lines it changes, its predicted saving, what a trial measured, its safety."""
    yield f"{one.finding.rank_order}. {one.finding.rule}"
    yield from _labelled("fix", one.fix.do)
    for label, place in zip_longest(["changes"], dict.fromkeys(one.places), fillvalue=""):
        yield from _labelled(label, place)
    yield from _labelled("predicted", _saving(one.finding))
    tried = None if diagnosis.trials is None else diagnosis.trials.of(one.finding.rule, one.fix.trial)
    if tried is not None and tried.measured is not None:
        yield from _labelled("measured", f"{factors(tried.measured)}: {verdict(tried)}")
    yield from _labelled("results", safety(diagnosis, one.fix.safety))


def _saving(finding: RankedFinding) -> str:
    low, likely, high = map(units.about, finding.shown_ns)
    if finding.per_sample:
        return f"saves {likely} ({low} to {high}) for the work of a step; the step itself gets longer"
    return f"saves {likely} ({low} to {high}) per step, {units.percent(finding.share_of_step)} of it"


def _by_hand(one: FixByHand) -> Iterator[str]:
    yield f"{one.finding.rank_order}. {one.finding.rule}"
    yield from _labelled("fix", one.fix.do)
    yield from _labelled("why not", f"{one.why}.")
    for at, line in enumerate(one.fix.after.splitlines()):
        yield f"   {'by hand' if at == 0 else '':<11}{line}".rstrip()


def _labelled(label: str, text: str) -> list[str]:
    """The label, and beside it the text in lines of WIDTH columns."""
    if not text:
        return [label]
    return textwrap.wrap(text, WIDTH, initial_indent=f"   {label:<11}", subsequent_indent=" " * 14)
