"""Which fixes of a diagnosis are tried, and why the others are not."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from diagnose.advice import timing
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Fix, Kind, PricedSaving, RankedFinding, Together, names, why_unknown
from diagnose.contracts.trials import NotTried, Range
from diagnose.facts.data.throughput import PER_CORE
from diagnose.fixes.loaders import LoaderArgument
from diagnose.fixes.models import Compile, CompileArgument
from diagnose.fixes.setting import Safety
from diagnose.statistics import PRECISE, Spread

BY_THEMSELVES = (Safety.SAME_NUMBERS, Safety.ROUNDING, Safety.PRECISION)  # In order; fixes tried without being named.


class CannotTry(Exception):
    """No trial can begin; the message is a sentence that says why and what to do."""


class Candidate(Struct, frozen=True):
    """A fix to try."""

    rule: str
    number: int
    fix: Fix
    trial: str  # As in `Fix.trial`.
    predicted: Range | None  # Speed-up, as analysis says it.

    @property
    def is_switch(self) -> bool:
        """Whether it can be turned on and off in a running training."""
        return self.fix.setting is not None and not self.fix.setting.why_no_switch

    @property
    def varies_by_process(self) -> bool:
        """Whether its gain differs between processes: one in which it gains nothing does not tell of the others."""
        return self.fix.setting is not None and self.fix.setting.varies_by_process

    @property
    def is_unsure(self) -> bool:
        """Whether the predicted gain is unknown, or its range is wide."""
        return self.predicted is None or self.predicted.high > PRECISE**2 * self.predicted.low

    def workers(self, times: float) -> Candidate | None:
        """The same with so many times the DataLoader workers; None of other fixes, and of too few or many."""
        setting = self.fix.setting
        if not isinstance(setting, LoaderArgument) or setting.argument != "num_workers":
            return None
        count = int(times * setting.value)
        if not 1 <= count <= PER_CORE * (os.cpu_count() or 1):
            return None
        fix = Fix.of(LoaderArgument("num_workers", count), f"Load batches in {count} worker processes.")
        return replace(self, fix=fix, trial=fix.trial or "", predicted=None)

    @property
    def compiles(self) -> bool:
        """Whether it compiles code, so that the first steps with it take long."""
        return isinstance(self.fix.setting, Compile | CompileArgument)

    @property
    def is_judged(self) -> bool:
        """Whether it may change numbers by more than rounding."""
        return self.fix.safety in (Safety.PRECISION, Safety.NEEDS_JUDGEMENT)


def named(trial: str) -> str:
    """A setting as the script has it: `DataLoader(num_workers=4)`."""
    return trial.partition(":")[2]


def select(
    findings: Sequence[RankedFinding], step_ns: int | None, asked: Sequence[str], safety: Safety, options: bool = False
) -> tuple[list[Candidate], list[NotTried]]:
    """Those to try, one per finding in their order, and the others with why not. `step_ns`: the step that their savings
    are of. `asked`: numbers, or rules' ids or codes; empty: all faults, with `options` also options, whose fixes change
    numbers no more than `safety`, and that are not minor. Raises CannotTry if one of these names no finding."""
    if why := why_unknown(asked, findings):
        raise CannotTry(why)
    tried, others, known = list[Candidate](), list[NotTried](), dict[str, int]()
    for finding in findings:
        by_name = any(names(one, finding) for one in asked)
        if asked and not by_name:
            continue
        fix, why_not = _fix_of(finding, safety, by_name)
        if finding.kind is Kind.OPTION and not (options or by_name or why_not):
            why_not = f"it is an option, not a fault (--options or --fix {finding.rank_order} tries it)"
        same = fix.setting.form if isinstance(fix.setting, Compile) else fix.trial or ""
        if not why_not and same in known:
            why_not = f"it is the same trial as that of {known[same]}"
        if why_not or fix.trial is None:
            others.append(NotTried(finding.rule, finding.rank_order, fix.do, why_not))
            continue
        known[same] = finding.rank_order
        predicted = _predicted(finding, step_ns)
        tried.append(Candidate(finding.rule, finding.rank_order, fix, fix.trial, predicted))
    return tried, others


def in_order(some: Sequence[Candidate]) -> list[Candidate]:
    """Those first that are predicted to gain most."""
    return sorted(some, key=lambda one: one.predicted.likely if one.predicted else 1.0, reverse=True)


def _fix_of(finding: RankedFinding, safety: Safety, by_name: bool) -> tuple[Fix, str]:
    """(the finding's fix to try, why it is not tried): "" if it is. `by_name`: the user asked for this finding."""
    with_trial = [fix for fix in finding.fixes if fix.trial is not None]
    if not with_trial:
        return (*finding.fixes, Fix(finding.title))[0], "it needs an edit of the script"
    supported = [one for one in with_trial if (setting := one.setting) is not None and not setting.why_not_tried]
    if not supported:
        fix = with_trial[0]
        unknown = f"this version does not support the setting {fix.trial}"
        return fix, unknown if fix.setting is None else fix.setting.why_not_tried
    allowed = BY_THEMSELVES[: BY_THEMSELVES.index(safety) + 1]
    safe = [one for one in supported if by_name or one.safety in allowed]
    how = supported[0].safety.value.replace("_", " ")
    why_not = "" if safe else f"its numerical change is '{how}' (try it with --fix {finding.rank_order})"
    if finding.minor and not by_name:
        why_not = f"it would save less than 1 % (try it with --fix {finding.rank_order})"
    return (safe or supported)[0], why_not


def _predicted(finding: RankedFinding, step_ns: int | None) -> Range | None:
    """The speed-up that analysis predicts; None where it predicts none of the step, or all of it."""
    return None if step_ns is None or finding.per_sample else _speed_up(finding.saving, step_ns)


def _speed_up(saving: PricedSaving | Together, step_ns: int) -> Range | None:
    """The step over what is left of it; None if the high saving is the whole step."""
    if saving.high_ns >= step_ns:
        return None
    return Range(*(step_ns / (step_ns - ns) for ns in (saving.low_ns, saving.likely_ns, saving.high_ns)))


def step_of(diagnosis: Diagnosis) -> int | None:
    """The step that savings are of, in ns."""
    steps = diagnosis.steps
    return None if steps is None else steps.unprofiled_step_time_ns or steps.step_time_ns.mean


def between_runs(diagnosis: Diagnosis) -> Spread:
    """How equal runs of the recorded training usually differ. Raises CannotTry if nothing in it could be measured."""
    steps, step_ns = diagnosis.steps, step_of(diagnosis)
    if steps is None or step_ns is None:
        raise CannotTry("The recording has nothing to measure. Record more steps: diagnose profile --steps 10.")
    ranks = diagnosis.provenance.world_size
    return timing.between_runs(steps.measure, diagnosis.spending or (), step_ns, ranks)


def predicted(diagnosis: Diagnosis, rules: Collection[str]) -> Range | None:
    """The speed-up by the fixes of all findings of a diagnosis that was made by these rules alone.
    None if one of them finds nothing that is worth a card, or if they save all of the step."""
    worth = [finding for finding in diagnosis.findings if finding.shortens]
    saved = None if diagnosis.replay is None else diagnosis.replay.all_together
    step_ns = diagnosis.step_ns
    if saved is None or step_ns is None or {one.rule for one in worth} != set(rules):
        return None
    return _speed_up(saved, step_ns)
