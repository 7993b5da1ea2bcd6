"""A Diagnosis from what is known of ranks, without files."""

from diagnose.advice import assembly
from diagnose.advice.rank_diagnosis import RankDiagnosis, in_brief
from diagnose.contracts.diagnosis import Diagnosis


def of_ranks(*ranks: RankDiagnosis) -> Diagnosis:
    briefs = [in_brief(rank, len(ranks)) for rank in ranks]
    shown = assembly.slowest(briefs).index
    (said,) = (rank for rank in ranks if rank.sections.rank == shown)
    return assembly.of_ranks(said, briefs, [], "test")
