"""A Diagnosis from what is known of ranks, without files."""

from __future__ import annotations

from diagnose.findings import diagnosis
from diagnose.findings.diagnosis import Diagnosis
from diagnose.findings.rank_diagnosis import RankDiagnosis, in_brief


def of_ranks(*ranks: RankDiagnosis) -> Diagnosis:
    """About the slowest of these ranks."""
    briefs = [in_brief(one, len(ranks)) for one in ranks]
    shown = diagnosis.slowest(briefs).index
    (said,) = (one for one in ranks if one.digest.index == shown)
    return diagnosis.of_ranks(said, briefs, [], "test")
