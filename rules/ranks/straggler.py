"""One rank is slower than the others.

All ranks meet at each collective, so the rank that computes longest sets the pace, and all others wait for it.

Why it costs
    The step takes as long as the slowest rank's; what the others wait for adds up over all of their GPUs.

How to fix
    Give every rank the same work: split data evenly, by what it takes rather than by samples, and let no rank do more
    than its part. If the work is the same, that rank's device is slower: look at its clock, temperature and neighbours.

Ignore when
    the ranks do different work on purpose.

Sources
    https://arxiv.org/abs/2505.05713
"""

from diagnose.facts.communication.balance import Balance
from diagnose.rulekit.vocabulary import *

EXCESS_SHARE = 0.05  # of the step: below it ranks of equal work differ as well (msprof-analyze's threshold)
CPU_EXCESS_SHARE = 0.15  # on CPUs that ranks share: two ranks of equal work on two cores differed by up to 0.10
SAME_RANK_SHARE = 0.75  # of the steps in which that rank computes longest: of two that take turns one may have 3 of 5
EVENED = Between(0.7, 1.0, 1.0)  # of the difference, on devices of their own (our choice)
CPU_EVENED = Between(0.4, 0.7, 1.0)  # where ranks share a machine: planted cases gained 0.7 of it

EVEN = Fix(
    "Split the work evenly over the ranks, as DistributedSampler does; if it is even, look at that rank's device.",
    after="DataLoader(dataset, sampler=DistributedSampler(dataset))",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)


@rule("ST01")
def straggler(balance: Balance | None) -> Verdicts:
    if balance is None:
        yield NotApplicable("there is one rank")
        return
    least = CPU_EXCESS_SHARE if balance.on_cpu else EXCESS_SHARE
    much = f"ank {balance.longest} computes {ms(balance.longest_ns)} a step, all ranks {ms(balance.mean_ns)} on average"
    if balance.always_share < least or balance.longest_share < SAME_RANK_SHARE:
        yield Clean(f"r{much}")
        return
    yield Finding(
        title=f"Rank {balance.longest} computes longer than the other ranks",
        evidence=(
            Evidence(
                f"R{much}: {percent(balance.always_share)} of the step less would do if all did the same. In"
                f" {percent(balance.longest_share)} of the steps no other rank computes for as long.",
                balance.always_ns,
                "ns",
            ),
        ),
        edits=balanced(balance, CPU_EVENED if balance.on_cpu else EVENED),
        fixes=(EVEN,),
        confidence=Confidence(Level.HIGH, "all ranks were recorded in the same steps"),
        basis=Basis.REPLAYED,
    )


EXAMPLES = [
    Fires(  # 60 and 80 ms: 70 ms each would do
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
        """,
        saving_ms=(7, 10),
    ),
    Silent(  # both compute alike, and communicate for long
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
        gpu     sgemm 0.1-61 @0.05
        gpu 20  allreduce 61-99.8 @0.3 group_size=2
        """
    ),
    CannotTell(
        """
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        gpu 20  allreduce 60-99.8 @0.3 group_size=2
        """,
        because="the other ranks' recordings",
    ),
]
