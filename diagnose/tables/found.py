"""The findings of a Diagnosis as a table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from diagnose.contracts.finding import RankedFinding
from diagnose.tables import schema
from diagnose.tables.frame import frame, places


def findings(found: Sequence[RankedFinding]) -> pd.DataFrame:
    """The table `findings`."""
    return frame(
        schema.FINDINGS,
        {
            "number": [one.rank_order for one in found],
            "rule": [one.rule for one in found],
            "code": [one.code for one in found],
            "title": [one.title for one in found],
            "saving_low_ns": [one.saving.low_ns for one in found],
            "saving_ns": [one.saving.likely_ns for one in found],
            "saving_high_ns": [one.saving.high_ns for one in found],
            "share_of_step": [one.share_of_step for one in found],
            "confidence": [one.confidence.level.value for one in found],
            "minor": [one.minor for one in found],
            "ranks": [len(one.where.ranks) for one in found],
            "evidence": [one.evidence[0].text if one.evidence else None for one in found],
            "fix": [one.fixes[0].do if one.fixes else None for one in found],
            **places([one.site for one in found]),
        },
    )
