"""Which fixes of a diagnosis a patch is to have, and why it has no others."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from diagnose.advice.naming import names, why_unknown
from diagnose.contracts.finding import Fix, Kind, RankedFinding
from diagnose.contracts.patches import FixByHand
from diagnose.contracts.trials import Report
from diagnose.contracts.trials import Trial as Tried
from diagnose.fixes.catalogue import parsed
from diagnose.fixes.setting import Safety, Setting
from diagnose.patches.errors import CannotPatch

DO_NOT_PAY = {"no_gain": "it gained nothing", "slower": "it was slower", "changes_numbers": "losses differed"}
"""Verdicts of trials after which a fix is not made by itself."""

BY_THEMSELVES = (Safety.SAME_NUMBERS, Safety.ROUNDING)
"""Changes of numbers that need no judgement: those that `diagnose try` makes without being asked."""


class Which(Enum):
    """Of the findings that nobody asked for by name, those whose fixes are made."""

    FAULTS = "faults"
    WITH_OPTIONS = "with options"
    KEPT = "kept"  # What trials have kept, and nothing else.


class Wanted(NamedTuple):
    """A fix for the patch."""

    finding: RankedFinding
    fix: Fix
    setting: Setting


def select(
    findings: Sequence[RankedFinding], asked: Sequence[str], tried: Report | None = None, which: Which = Which.FAULTS
) -> tuple[list[Wanted], list[FixByHand]]:
    """Those to make, in the order of the findings, and the others.

    `asked`: numbers, or rules' ids or codes; empty: all faults that need no judgement and save 1 % or
    more, and what is asked for by `which`.
    `tried`: what trials have found of them.
    Raises CannotPatch if one of these names no finding.
    """
    if why := why_unknown(asked, findings):
        raise CannotPatch(why)
    wanted, others = list[Wanted](), list[FixByHand]()
    for finding in findings:
        by_name = any(names(one, finding) for one in asked)
        if asked and not by_name:
            continue
        known = [Wanted(finding, fix, setting) for fix in finding.fixes if (setting := fix.setting) is not None]
        if not known:
            fix = (*finding.fixes, Fix(finding.title))[0]
            others.append(FixByHand(finding, fix, "it needs an edit by hand"))
            continue
        best = min(known, key=lambda one: not (by_name or one.fix.safety in BY_THEMSELVES))
        measured = None if tried is None else tried.of(finding.rule, best.fix.trial)
        if why_not := _why_not(best, by_name, measured, which):
            others.append(FixByHand(finding, best.fix, why_not))
        else:
            wanted.append(best)
    return wanted, others


def kept(findings: Sequence[RankedFinding], tried: Report | None) -> list[Wanted]:
    """Those that trials have kept, in the order of the findings. Raises CannotPatch if there are none."""
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
    """Why it is only made when asked for by its name; empty if it is made."""
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
