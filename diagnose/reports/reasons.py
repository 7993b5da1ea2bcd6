"""Why a finding says what it says: what the replay changed, and the sum that gives the saving, with its numbers."""

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.replay.saving import Basis
from diagnose.replay.shown import Change, ChangeKind
from diagnose.trace.units import duration, number, percent

_DONE = {
    ChangeKind.SHORTEN: "made shorter",
    ChangeKind.REMOVE: "taken away",
    ChangeKind.DETACH: "waited for by nobody any more",
    ChangeKind.MOVE: "run beside the rest",
    ChangeKind.REPLACE: "joined into fewer",
    ChangeKind.RECOST: "computed otherwise",
}


def changes(finding: RankedFinding, diagnosis: Diagnosis) -> list[str]:
    """What the fix was replayed as, a sentence each."""
    used = max(diagnosis.steps.used, 1) if diagnosis.steps else 1
    return [_change(change, used) for change in finding.changes if change.count]


def _change(one: Change, used: int) -> str:
    if one.kind is ChangeKind.EVEN and one.left is not None:
        ranks = f"{number(one.count)} rank{'s' * (one.count != 1)}"
        return f"{ranks} take{'s' * (one.count == 1)} {percent(one.left[1])} of {duration(one.ns)} a step."
    if one.kind is ChangeKind.RECHUNK:
        return f"Each step has more than {number(one.count)} micro-batches, and each of them a cost of its own."
    what = f"{number(one.count / used)} operations or calls a step, {duration(one.ns)} together, {_DONE[one.kind]}"
    if one.kind in (ChangeKind.REMOVE, ChangeKind.DETACH) or one.left is None:
        return f"{what}."
    low, likely, high = one.left
    if low == likely == high:
        return f"{what}: {percent(likely)} of their time is left."
    return f"{what}: {percent(likely)} of their time is left (low saving: {percent(low)}, high: {percent(high)})."


def formula(finding: RankedFinding, diagnosis: Diagnosis) -> list[str]:
    """The sum that gives the likely saving and its range, a sentence each; empty if nothing was replayed."""
    saving, quality = finding.saving, diagnosis.replay
    if quality is None or saving.replayed_ns is None:
        return []
    step_ns, (low, likely, high) = quality.step_time_ns, saving.replayed_ns
    spread = "" if low == high else f" (low estimate: {duration(low)}, high: {duration(high)})"
    lines = [
        f"The replayed step takes {duration(step_ns)}; with that change, {duration(likely)}{spread}.",
        f"{_exact(step_ns)} - {_exact(likely)} = {_exact(step_ns - likely)} saved.",
    ]
    if diagnosis.step_ns != step_ns:
        lines.append(f"Of the step of {duration(diagnosis.step_ns or 0)} that is {duration(saving.likely_ns)}.")
    doubt = max(abs(quality.error_share), quality.unexplained_share)
    if saving.basis is Basis.BOUNDED:
        lines.append(f"The replay leaves {percent(doubt)} of this recording unexplained: the saving may also be 0.")
    elif saving.basis is Basis.AT_MOST:
        lines.append("That is an upper bound, as no fix is known.")
    return lines


def _exact(ns: int) -> str:
    """With all digits that a sum needs to be seen to be right."""
    return f"{ns / 1e6:,.3f} ms"
