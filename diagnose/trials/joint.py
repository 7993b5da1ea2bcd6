"""What analysis predicts of several fixes together."""

from __future__ import annotations

from collections.abc import Collection

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Range


def predicted(diagnosis: Diagnosis, rules: Collection[str]) -> Range | None:
    """The speed-up by the fixes of all findings of a diagnosis that was made by these rules alone.

    None if one of them finds nothing that is worth a card, or if they save all of the step.
    """
    worth = [finding for finding in diagnosis.findings if finding.shortens]
    saved = None if diagnosis.replay is None else diagnosis.replay.all_together
    step_ns = diagnosis.step_ns
    if saved is None or step_ns is None or {one.rule for one in worth} != set(rules) or saved.high_ns >= step_ns:
        return None
    low, likely, high = (step_ns / (step_ns - ns) for ns in (saved.low_ns, saved.likely_ns, saved.high_ns))
    return Range(low, likely, high)
