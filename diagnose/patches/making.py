"""From the findings of a diagnosis to a patch."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec

from diagnose.contracts.finding import Fix, Kind, RankedFinding, names, why_unknown
from diagnose.contracts.patches import FixByHand, Patch, PatchedFile, PatchedFix
from diagnose.contracts.trials import Report
from diagnose.contracts.trials import Trial as Tried
from diagnose.fixes.catalogue import parsed
from diagnose.fixes.setting import Loop, Safety, Setting
from diagnose.patches import files
from diagnose.patches.code import Edit
from diagnose.patches.editor import edits_of
from diagnose.patches.files import CannotEdit, CannotPatch
from diagnose.patches.project import Project
from diagnose.trace.manifest import Manifest

DO_NOT_PAY = {"no_gain": "it gained nothing", "slower": "it was slower", "changes_numbers": "losses differed"}
"""Verdicts of trials after which a fix is not made by itself."""

BY_THEMSELVES = (Safety.SAME_NUMBERS, Safety.ROUNDING)  # Changes of numbers without judgement, as by `diagnose try`.


class Which(Enum):
    """Which fixes are made of findings that the user does not ask for by name."""

    FAULTS = "faults"
    WITH_OPTIONS = "with options"  # Faults and options.
    KEPT = "kept"  # Those that trials have kept, and nothing else, whatever was asked for.


class Wanted(NamedTuple):
    """A fix for the patch."""

    finding: RankedFinding
    fix: Fix
    setting: Setting


def select(
    findings: Sequence[RankedFinding], asked: Sequence[str], tried: Report | None = None, which: Which = Which.FAULTS
) -> tuple[list[Wanted], list[FixByHand]]:
    """The fixes to make, one per finding and in their order, and the others with why not. `tried`: results of trials.
    `asked`: numbers, or rules' ids or codes; empty: all faults that need no judgement and save 1 % or more, and what is
    asked for by `which`. Raises CannotPatch if one of these names no finding."""
    if why := why_unknown(asked, findings):
        raise CannotPatch(why)
    wanted, others = list[Wanted](), list[FixByHand]()
    for finding in findings:
        by_name = any(names(one, finding) for one in asked)
        if asked and not by_name:
            continue
        makeable = [Wanted(finding, fix, setting) for fix in finding.fixes if (setting := fix.setting) is not None]
        if not makeable:
            fix = (*finding.fixes, Fix(finding.title))[0]
            others.append(FixByHand(finding, fix, "it needs an edit by hand"))
            continue
        best = min(makeable, key=lambda one: not (by_name or one.fix.safety in BY_THEMSELVES))
        measured = None if tried is None else tried.of(finding.rule, best.fix.trial)
        if why_not := _why_not(best, by_name, measured, which):
            others.append(FixByHand(finding, best.fix, why_not))
        else:
            wanted.append(best)
    return wanted, others


def kept(findings: Sequence[RankedFinding], tried: Report | None) -> list[Wanted]:
    """The fixes that trials have kept, in the order of the findings. Raises CannotPatch if there are none."""
    if tried is None:
        raise CannotPatch("This run has no trials. Run diagnose try first.")
    found = [
        Wanted(finding, msgspec.structs.replace(fix, do=trial.fix, trial=trial.trial[0]), setting)
        for finding in findings
        for fix in finding.fixes
        if (trial := tried.of(finding.rule, fix.trial)) is not None
        and trial.verdict == "keep"
        and (setting := parsed(trial.trial[0])) is not None
    ]
    if not found:
        raise CannotPatch("The trials of this run kept no fix.")
    return found


def _why_not(one: Wanted, by_name: bool, tried: Tried | None, which: Which) -> str:
    """A clause on why a fix is left out unless the user names it (`by_name`); empty if it is made."""
    adds = f"--fix {one.finding.rank_order} adds it"
    if by_name:
        return ""
    if tried is not None and tried.verdict in DO_NOT_PAY:
        return f"{DO_NOT_PAY[tried.verdict]} when it was tried ({adds})"
    pays = tried is not None and tried.verdict == "keep"
    if one.finding.kind is Kind.OPTION and not (which is Which.WITH_OPTIONS or pays):
        return f"it is an option, not a fault (--options or {adds})"
    if one.fix.safety not in BY_THEMSELVES:
        how = "less precise arithmetic" if one.fix.safety is Safety.PRECISION else "another training"
        return f"it needs your judgement, as it means {how} ({adds})"
    return f"it would save less than 1 % ({adds})" if one.finding.minor and not pays else ""


def make(
    findings: Sequence[RankedFinding],
    manifest: Manifest | None,
    rank: int,
    asked: Sequence[str],
    here: Path,
    tried: Report | None = None,
    loop: Loop | None = None,
    which: Which = Which.FAULTS,
) -> Patch:
    """The fixes that are asked for, or all that need no judgement, as changes of files in the working folder `here`.
    `rank`: whose findings they are. `asked`: numbers or names of findings. `tried`: what trials have found of them.
    `which`: of those that nobody asked for by name. `loop`: what owns the training loop; None: as the recorder says.
    Raises CannotPatch if what is asked for is no finding, if nothing was kept, or none of the run's files is here."""
    wanted, by_hand = (kept(findings, tried), []) if which is Which.KEPT else select(findings, asked, tried, which)
    sites = [finding.site for finding in findings if finding.site is not None]
    project = Project(manifest, rank, sites, here, loop)
    if wanted and not project.paths:
        _refuse(project)
    made = list[tuple[Wanted, list[Edit]]]()
    for one in wanted:
        try:
            made.append((one, _fitting(one, project, made)))
        except CannotEdit as error:
            by_hand.append(FixByHand(one.finding, one.fix, str(error)))
    fixes = tuple(PatchedFix(one.finding, one.fix, tuple(edit.place for edit in edits)) for one, edits in made)
    changed = tuple(_files([edit for _, edits in made for edit in edits]))
    by_hand.sort(key=lambda one: one.finding.rank_order)
    notes = [note for one in changed if (note := project.changed_since(one))]
    return Patch(project.root, fixes, tuple(by_hand), changed, tuple(notes))


def _fitting(one: Wanted, project: Project, made: Iterable[tuple[Wanted, list[Edit]]]) -> list[Edit]:
    """The edits of a fix. Raises CannotEdit if it cannot be made, or conflicts with those in `made`."""
    edits = edits_of(one.setting, project, one.finding.site)
    others = list[Edit]()
    for other, already in made:
        if {edit.key for edit in already} & {edit.key for edit in edits}:
            raise CannotEdit(f"fix {other.finding.rank_order} changes the same place")
        others += already
    _files([*others, *edits])
    return edits


def _files(edits: Sequence[Edit]) -> list[PatchedFile]:
    """The files that these edits change, by name. Raises CannotEdit if one would not be valid Python afterwards."""
    found = list[PatchedFile]()
    for path, code in {edit.code.source.path: edit.code for edit in edits}.items():
        after = code.changed([edit for edit in edits if edit.code is code])
        found.append(PatchedFile(path, code.source.name, code.source.content, after))
    return sorted(found, key=lambda one: one.name)


def _refuse(project: Project) -> None:
    """Raises CannotPatch: none of the run's files can be patched here."""
    if not project.named:
        raise CannotPatch("The recording names no source file. Record with diagnose profile.")
    try:
        files.located(project.named[0], project.root, project.here)
    except CannotEdit as error:
        raise CannotPatch(
            f"Nothing can be patched: {error}. Run diagnose patch in the folder of the recording's script."
        ) from error


def unified(files: Iterable[PatchedFile]) -> bytes:
    """One git diff of all files, as bytes, as files may be in different encodings."""
    return b"".join(line for file in files for line in _file_diff(file))


def _file_diff(one: PatchedFile) -> Iterator[bytes]:
    """The file's part of a git diff, as bytes; nothing if it does not change."""
    if one.before == one.after:
        return
    _, _, *changes = difflib.unified_diff(_lines(one.before), _lines(one.after), n=3)
    old, new = _name(f"a/{one.name}"), _name(f"b/{one.name}")
    # git ends a name that has blanks with a tab (diff.c).
    tab = "\t" if " " in one.name else ""
    yield f"diff --git {old} {new}\n--- {old}{tab}\n+++ {new}{tab}\n".encode()
    for line in changes:
        yield line.encode("latin-1") + (b"" if line.endswith("\n") else b"\n\\ No newline at end of file\n")


def _lines(content: bytes) -> list[str]:
    """The lines, one character per byte, so that any encoding can be compared; only a line feed ends one."""
    return [line for line in re.split(r"(?<=\n)", content.decode("latin-1")) if line]


def _name(name: str) -> str:
    """A file's name as git writes it: in quotes if it has control characters, quotes or backslashes (quote.c)."""
    if not any(ord(one) < 32 or one in '"\\\x7f' for one in name):
        return name
    plain = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    octal = (plain.get(one, one if 32 <= ord(one) != 127 else f"\\{ord(one):03o}") for one in name)
    return f'"{"".join(octal)}"'
