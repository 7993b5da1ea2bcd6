"""Experts or embeddings of some ranks get more rows.

Ranks that hold different experts, or different tables, send each other rows by all-to-all. Who gets more of them
computes longer.

Why it costs
    The exchange back begins when the last rank is through. All others wait for it, in every layer of experts.

How to fix
    Let the router spread tokens: a balancing loss or bias, a capacity for each expert. Or place experts so that each
    rank's together get as many tokens, and hold popular ones twice. Tables: place them by rows asked for, not by size.

Ignore when
    the data are artificial: routers spread random tokens otherwise than real ones.

Sources
    https://arxiv.org/abs/2408.15664
    https://arxiv.org/abs/2101.03961
"""

from diagnose.facts.communication.balance import Balance
from diagnose.rulekit.vocabulary import *

SAME_RANK_SHARE = 0.75  # of the steps: as in straggler
EVENED = Between(0.4, 0.8, 1.0)  # of the difference: routers do not spread tokens evenly (our choice)

ROUTE = Fix(
    "Let the router spread tokens evenly over the ranks' experts: a balancing loss or bias, or a capacity for each.",
    after="loss = loss + 0.01 * balancing_loss(router_probabilities, chosen_experts)",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    link="https://arxiv.org/abs/2101.03961",
)
PLACE = Fix(
    "Or place experts, or tables, so that each rank's together get as many rows. Hold popular ones on several ranks.",
    effort=3,
    link="https://github.com/deepseek-ai/EPLB",
)


@rule("CO13")
def expert_imbalance(balance: Balance | None) -> Verdicts:
    if balance is None or not balance.exchanges:
        yield NotApplicable("ranks exchange no rows by all-to-all")
        return
    always = balance.surely and balance.longest_share >= SAME_RANK_SHARE
    much = f"ank {balance.longest} computes {ms(balance.longest_ns)} a step, all ranks {ms(balance.mean_ns)} on average"
    if balance.same_work or not (always or balance.in_turn):
        yield Clean(f"r{much}")
        return
    work = "" if balance.more_work is None else f", asked to do {balance.more_work:.2g} times as much as the others"
    evidence = f"R{much}{work}. The others wait for it at the all-to-all."
    if not always:
        evidence = (
            f"All ranks compute {ms(balance.mean_ns)} a step on average, but the one that computes longest, which"
            f" changes, {ms(balance.excess_ns)} more. The others wait for it at the all-to-all."
        )
    yield Finding(
        title=f"Rank {balance.longest}'s experts or tables get more rows than the others'" if always else "",
        evidence=(Evidence(evidence, balance.excess_ns, "ns"),),
        edits=(Even(balance.dealt, EVENED),),
        fixes=(ROUTE, PLACE),
        confidence=Confidence(Level.MEDIUM, "how many rows each expert gets was not recorded"),
    )


EXAMPLES = [
    Fires(  # 60 and 80 ms between exchanges: 70 ms each would do
        """
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05 blocks=300
        gpu 20  nccl 60-99.8 @0.3 group_size=2 operation=all_to_all
        ---
        4 steps of 100
        rank 1 of 2
        cpu     aten::mm 0-0.1 | device_sync 1-99.9
        gpu     sgemm 0.1-80 @0.05 blocks=400
        gpu 20  nccl 80-99.8 @0.3 group_size=2 operation=all_to_all
        """,
        saving_ms=(4, 10),
    ),
    Silent(  # both get as many
        """
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05 blocks=300
        gpu 20  nccl 60-99.8 @0.3 group_size=2 operation=all_to_all
        ---
        4 steps of 100
        rank 1 of 2
        cpu     aten::mm 0-0.1 | device_sync 1-99.9
        gpu     sgemm 0.1-60.5 @0.05 blocks=300
        gpu 20  nccl 60.5-99.8 @0.3 group_size=2 operation=all_to_all
        """
    ),
    Silent(  # nothing is exchanged: one rank computes longer, which is straggler's
        """
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
        """
    ),
]
