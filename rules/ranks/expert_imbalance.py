"""Experts or embeddings of some ranks get more rows.

Ranks with different experts or tables exchange rows by all-to-all. A rank that gets more rows computes longer.

Why it costs
    The return exchange starts when the last rank is done. All others wait for that rank, in every expert layer.
How to fix
    Balance the router: a balancing loss or bias, or a capacity per expert. Or place experts so that ranks get equal
    numbers of tokens, and replicate popular ones. Place tables by rows read, not by size.
Ignore when
    the data are artificial: routers spread random tokens differently from real ones.
Sources
    https://arxiv.org/abs/2408.15664
    https://arxiv.org/abs/2101.03961
"""

from diagnose.facts.communication.balance import Balance
from diagnose.rulekit.vocabulary import *

SAME_RANK_SHARE = 0.75  # of the steps: as in straggler
EVENED = Between(0.4, 0.8, 1.0)  # of the difference: routers do not spread tokens evenly (our choice)

ROUTE = Fix(
    "Balance the router with a balancing loss or bias, or a capacity per expert.",
    after="loss = loss + 0.01 * balancing_loss(router_probabilities, chosen_experts)",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    link="https://arxiv.org/abs/2101.03961",
)
PLACE = Fix(
    "Or place experts or tables so that ranks get equally many rows, and replicate popular ones.",
    effort=3,
    link="https://github.com/deepseek-ai/EPLB",
)


@rule("CO13")
def expert_imbalance(balance: Balance | None) -> Verdicts:
    if balance is None or not balance.exchanges:
        yield NotApplicable("ranks do not exchange rows by all-to-all")
        return
    always = balance.surely and balance.longest_share >= SAME_RANK_SHARE
    much = f"ank {balance.longest} computes {ms(balance.longest_ns)}/step, all ranks {ms(balance.mean_ns)} on average"
    if balance.same_work or not (always or balance.in_turn):
        yield Clean(f"r{much}")
        return
    work = (
        ""
        if balance.more_work is None
        else f" Rank {balance.longest} gets {balance.more_work:.2g} times the work of the others."
    )
    evidence = f"R{much}.{work}"
    if not always:
        evidence = (
            f"The longest-computing rank, which changes, takes {ms(balance.excess_ns)}/step more than the mean,"
            f" {ms(balance.mean_ns)}."
        )
    yield Finding(
        title=f"Experts or tables of rank {balance.longest} get more rows" if always else "",
        evidence=(Evidence(evidence, balance.excess_ns, "ns"),),
        edits=(Even(balance.balanced_load, EVENED),),
        fixes=(ROUTE, PLACE),
        confidence=Confidence(Level.MEDIUM, "the rows per expert were not recorded"),
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
    # both get as many
    Silent("""
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
    """),
    # nothing is exchanged: one rank computes longer, which is straggler's
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
]
