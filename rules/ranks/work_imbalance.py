"""The slowest rank changes from step to step.

In each step, ranks get different amounts of work: longer sequences, larger images, more tokens per expert.

Why it costs
    All ranks meet at each collective, and wait for the one with the most work in that step. On average all do the same,
    yet each step takes as long as its longest part.
How to fix
    Distribute work by cost: bucket by length before batches are split over ranks. Or fill batches by tokens rather than
    samples, or pack sequences to equal length.
Ignore when
    the order of the data must not depend on its length.
Sources
    https://arxiv.org/abs/2505.05713
"""

from diagnose.facts.communication.balance import Balance
from diagnose.rulekit.vocabulary import *

EVENED = Between(0.5, 0.8, 1.0)  # of the difference: samples do not divide evenly (our choice)
CPU_EVENED = Between(0.4, 0.7, 1.0)  # where ranks share a machine: as in straggler (our choice)

BUCKET = Fix(
    "Give all ranks work of about the same size in each step.",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    after="mine = sorted(documents, key=len)[rank::ranks]  # by size",
    link="https://arxiv.org/abs/2505.05713",
)


@rule("ST02")
def work_imbalance(balance: Balance | None) -> Verdicts:
    if balance is None:
        yield NotApplicable("no other rank does the same work")
        return
    much = f"the longest-computing rank takes {ms(balance.excess_ns)}/step more than the mean"
    if balance.holds_more:
        yield NotApplicable("ranks hold different experts or tables: see expert_imbalance")
        return
    if not balance.in_turn:
        yield Clean(f"{much}, {ms(balance.always_ns)} of it always the same rank")
        return
    yield Finding(
        evidence=(
            Evidence(
                f"The longest-computing rank, which changes, takes {ms(balance.excess_ns)}/step more than the mean,"
                f" {ms(balance.mean_ns)}.",
                balance.excess_ns,
                "ns",
            ),
        ),
        edits=(Even(balance.balanced_load, CPU_EVENED if balance.shared_cores else EVENED),),
        fixes=(BUCKET,),
        confidence=Confidence(Level.MEDIUM, "how evenly the work can be split is not known"),
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    Fires(  # 60 and 80 ms, in turn: 70 ms each would do
        """
        5 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05 in 0,2,4 | sgemm 0.1-80 @0.05 in 1,3
        gpu 20  allreduce 60-99.8 @0.3 in 0,2,4 group_size=2 | allreduce 80-99.8 @0.3 in 1,3 group_size=2
        ---
        5 steps of 100
        rank 1 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-80 @0.05 in 0,2,4 | sgemm 0.1-60 @0.05 in 1,3
        gpu 20  allreduce 80-99.8 @0.3 in 0,2,4 group_size=2 | allreduce 60-99.8 @0.3 in 1,3 group_size=2
        """,
        saving_ms=(5, 10),
    ),
    # always the same rank
    Silent("""
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        gpu 20  allreduce 60-99.8 @0.3 group_size=2
        ---
        4 steps of 100
        rank 1 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-80 @0.05
        gpu 20  allreduce 80-99.8 @0.3 group_size=2
    """),
    CannotTell(
        """
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        """,
        because="the other ranks' recordings",
    ),
]
