"""A Diagnosis in at most forty lines: what a step is bound by, what to change first, what could not be checked.

The terminal, Markdown, the page's head and agents show the same values.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Kind
from diagnose.failures import attempt, each, section
from diagnose.fixes.setting import Safety
from diagnose.replay.saving import DOUBTFUL, Basis
from diagnose.reports import findings, heading, trials
from diagnose.reports.findings import Entry
from diagnose.reports.heading import Segment
from diagnose.reports.words import BASES, SAFETY, listed
from diagnose.trace.model import Severity
from diagnose.trace.units import clipped, duration, rounded_share

MOST_TRIALS = 4
MOST_NOTE = 190  # Characters of a note on the recording, beyond which its effect is in the details alone.
MOST_TEXT = 1_000  # Characters of any note.
MOST_UNCHECKED = 5  # Things that could not be looked at, which are named.


class Brief(Struct, frozen=True):
    """The report, by parts. No name in it is escaped for any form."""

    subject: str
    headline: str
    bar: tuple[Segment, ...]
    gain: tuple[str, ...]
    warning: str  # What the numbers above do not hold for; empty if nothing.
    lists: tuple[tuple[str, str, tuple[Entry, ...]], ...]  # (heading, what its savings are, findings)
    notes: tuple[str, ...]  # Each caveat once, the worst first.
    next: tuple[tuple[str, str, str], ...]  # (command up to its path, path with the rest, what it does)


NOTHING = Brief("", "", (), (), "", (), (), ())


def of(diagnosis: Diagnosis) -> Brief:
    """The report in brief. Where a part fails, it is left out."""
    lists = section("findings", findings.entries, diagnosis)
    return Brief(
        subject=attempt("what ran on what", "", heading.subject, diagnosis),
        headline=attempt("the step time", "", heading.headline, diagnosis),
        bar=tuple(section("the bar of the step", heading.bar, diagnosis)),
        gain=tuple(section("what fixing the faults gives", heading.gain, diagnosis)),
        warning=attempt("what was not recorded", "", _warning, diagnosis),
        lists=tuple((name, findings.ABOUT[name], tuple(some)) for name, some in lists),
        notes=tuple(clipped(note, MOST_TEXT) for note in each(_NOTES, diagnosis)),
        next=tuple(section("what to do next", _next, diagnosis)),
    )


def _warning(diagnosis: Diagnosis) -> str:
    """Rules failed, only one step was used, or long steps were not recorded: as one sentence; empty if nothing."""
    steps = diagnosis.steps
    if (failed := heading.incomplete(diagnosis)) or steps is None:
        return failed
    if steps.used == 1 and steps.numbers:
        return "! All numbers are a hypothesis: record more steps first."
    missed = steps.unrecorded
    return f"! {missed.long} long steps of {missed.timed} timed ones were not recorded: see NOTES." if missed else ""


def _integrity(diagnosis: Diagnosis) -> Iterator[str]:
    """Notes of the recording, errors first; of a long one only what happened, not its effect."""
    for severity in (Severity.ERROR, Severity.WARNING):
        for note in diagnosis.integrity:
            if note.severity is severity:
                whole = f"{note.what} {note.effect}".strip()
                yield whole if len(whole) <= MOST_NOTE else note.what


def _doubt(diagnosis: Diagnosis) -> Iterator[str]:
    quality = diagnosis.replay
    if quality is None or not diagnosis.findings:
        return
    doubt = max(abs(quality.error_share), quality.unexplained_share)
    if doubt >= DOUBTFUL:
        yield f"The simulation leaves {rounded_share(doubt)} of the step unexplained, so savings are less sure."


def _epoch(diagnosis: Diagnosis) -> Iterator[str]:
    """A sentence on time once per epoch outside of steps; nothing below TELLING of an epoch, or if it is not known."""
    epoch = None if diagnosis.steps is None else diagnosis.steps.epoch
    if epoch is None:
        return
    parts = {"the first batch": epoch.starting_ns, "evaluation, saving and the like": epoch.between_ns}
    least = heading.TELLING * epoch.steps * epoch.step_ns
    shown = [f"{what} {duration(ns)}" for what, ns in parts.items() if ns >= least]
    if shown:
        yield f"Once per epoch ({epoch.steps:,} steps), on top of the steps: {', '.join(shown)}."


def _results(diagnosis: Diagnosis) -> Iterator[str]:
    """A sentence on which of the numbered findings change results."""
    of_level = defaultdict[Safety, list[str]](list)
    for at, one in findings.worth(diagnosis):
        if one.fixes and one.kind is not Kind.WHERE_TO_LOOK:
            of_level[one.fixes[0].safety].append(str(at))
    exact = [level for level in (Safety.SAME_NUMBERS, Safety.ROUNDING) if of_level.pop(level, [])]
    others = "; ".join(f"{listed(some)} {SAFETY[level]}" for level, some in of_level.items())
    if exact:
        yield "Results stay the same up to rounding" + (f", except: {others}." if others else ".")
    elif others:
        yield f"Results: {others}."


def _bases(diagnosis: Diagnosis) -> Iterator[str]:
    """A sentence on how savings were found, with the numbers of findings where methods differ."""
    of_basis = defaultdict[Basis, list[str]](list)
    for at, one in findings.worth(diagnosis):
        of_basis[one.saving.basis].append(str(at))
    clauses = [f"{listed(some)} {'are' if len(some) > 1 else 'is'} {BASES[basis]}" for basis, some in of_basis.items()]
    if len(clauses) == 1:
        clauses = [BASES[basis] for basis in of_basis]
    if clauses:
        yield f"Savings: {'; '.join(clauses)}."


def _small(diagnosis: Diagnosis) -> Iterator[str]:
    small = [one for one in diagnosis.findings if one.minor and not one.hidden]
    if small:
        named = ", ".join(f"{one.code} −{duration(one.shown_ns[1])}" for one in small[:4])
        yield f"Under 1 %, hidden: {named}{', ...' * (len(small) > 4)}. Show: --all"


def _unchecked(diagnosis: Diagnosis) -> Iterator[str]:
    parts = [f"{what} ({codes})" for what, codes in findings.not_checked(diagnosis)]
    if more := len(parts) - MOST_UNCHECKED:
        parts[MOST_UNCHECKED:] = [f"{more} more: --details"] * (more > 0)
    if parts:
        yield f"Not checked: {'; '.join(parts)}."


def _tried(diagnosis: Diagnosis) -> Iterator[str]:
    tried = [] if diagnosis.trials is None else trials.all_of(diagnosis.trials)
    yield from (f"Measured: {trials.brief(one)}" for one in tried[:MOST_TRIALS])


_NOTES: Mapping[str, Callable[[Diagnosis], Iterable[str]]] = {
    "rules that failed": findings.crashed,
    "notes on the recording": _integrity,
    "doubts of the simulation": _doubt,
    "what was tried": _tried,
    "what comes once an epoch": _epoch,
    "what fixes do to results": _results,
    "how savings were found": _bases,
    "smaller findings": _small,
    "what could not be looked at": _unchecked,
}
"""In order of importance: where there is no room, the last notes are left out first."""


def _next(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    """Commands as `Brief.next` has them: `try` for a whole recording with a fix that can be tried, then --details."""
    path = shlex.quote(_path(diagnosis))
    whole = diagnosis.provenance.manifest is not None and diagnosis.conclusive
    if whole and any(fix.trial for one in diagnosis.findings for fix in one.fixes):
        yield "diagnose try ", path, "measure the fixes in your script"
    yield "diagnose analyze --details ", path, "tables, kernels, critical path"


def _path(diagnosis: Diagnosis) -> str:
    """What commands name: the only trace, or the folder of several traces or of a recording with a manifest."""
    first = diagnosis.provenance.sources[0].path if diagnosis.provenance.sources else "PATH"
    many = len(diagnosis.provenance.sources) > 1 or diagnosis.provenance.manifest is not None
    return first.rpartition("/")[0] or "." if many else first
