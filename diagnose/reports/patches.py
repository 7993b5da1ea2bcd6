"""What a patch does, as text beside its diff."""

import textwrap
from collections.abc import Iterator
from itertools import zip_longest

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.contracts.patches import FixByHand, Patch, PatchedFix
from diagnose.reports import trials, words
from diagnose.trace import units

WIDTH = 100
_INDENT = 14


def render(patch: Patch, diagnosis: Diagnosis) -> str:
    """All of it, ending in a newline."""
    lines = list[str]()
    for fix in patch.fixes:
        lines += [*_patched(fix, diagnosis), ""]
    if patch.by_hand:
        lines += ["Not in the diff:", ""]
    for other in patch.by_hand:
        lines += [*_by_hand(other), ""]
    lines += [line for note in patch.notes for line in textwrap.wrap(f"Note: {note}", WIDTH)]
    return "\n".join([*lines, conclusion(patch)]) + "\n"


def conclusion(patch: Patch) -> str:
    """The sentence that says how much is in the diff."""
    if not patch.fixes:
        return "The diff is empty: see above for fixes by hand." if patch.by_hand else "There is no fix to make."
    count, files = len(patch.fixes), len(patch.files)
    return f"The diff has {count} fix{'es' * (count > 1)} in {files} file{'s' * (files > 1)}."


def _patched(one: PatchedFix, diagnosis: Diagnosis) -> Iterator[str]:
    yield from _row(f"{one.finding.rank_order}. {one.finding.rule}", "")
    yield from _row("fix", one.fix.do)
    for name, place in zip_longest(["changes"], dict.fromkeys(one.places), fillvalue=""):
        yield from _row(name, place)
    yield from _row("predicted", _saving(one.finding, diagnosis))
    tried = None if diagnosis.trials is None else diagnosis.trials.of(one.finding.rule, one.fix.trial)
    if tried is not None and tried.measured is not None:
        yield from _row("measured", f"{trials.factors(tried.measured)}: {trials.verdict(tried)}")
    yield from _row("results", words.safety(diagnosis, one.fix.safety))


def _saving(finding: RankedFinding, diagnosis: Diagnosis) -> str:
    low, likely, high = map(units.about, finding.shown_ns)
    if finding.per_sample:
        return f"saves {likely} ({low} to {high}) for the work of a step; the step itself gets longer"
    return f"saves {likely} ({low} to {high}) per step, {units.percent(finding.share_of_step)} of it"


def _by_hand(one: FixByHand) -> Iterator[str]:
    yield from _row(f"{one.finding.rank_order}. {one.finding.rule}", "")
    yield from _row("fix", one.fix.do)
    yield from _row("why not", f"{one.why}.")
    code = one.fix.after.splitlines()
    for name, line in zip_longest(["by hand"] if code else [], code, fillvalue=""):
        yield f"   {name:<{_INDENT - 3}}{line}".rstrip()


def _row(name: str, text: str) -> list[str]:
    if not text:
        return [name]
    return textwrap.wrap(text, WIDTH, initial_indent=f"   {name:<{_INDENT - 3}}", subsequent_indent=" " * _INDENT)
