"""One rank is slower than the others.

All ranks meet at each collective, so the rank that computes longest sets the pace, and all others wait for it.

Why it costs
    The step takes as long as the slowest rank's; what the others wait for adds up over all of their GPUs.

How to fix
    If that rank's kernels do more, give every rank the same work: split data evenly, by what it takes rather than by
    samples. If they do the same, its device is slower: look at its clock, temperature, power limit and neighbours.

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
    "Split the work evenly over the ranks, by what it takes, as DistributedSampler does by samples.",
    after="DataLoader(dataset, sampler=DistributedSampler(dataset))",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)
DEVICE = Fix(
    "Look at that rank's device while it trains (nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE, and who else"
    " uses it). If nothing holds its clock back, replace it.",
    safety=Safety.SAME_NUMBERS,
    effort=2,
    link="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
)


@rule("ST01")
def straggler(balance: Balance | None) -> Verdicts:
    if balance is None:
        yield NotApplicable("there is one rank")
        return
    alike, spared_ns = balance.same_work, balance.longest_ns - balance.others_ns
    least = CPU_EXCESS_SHARE if balance.on_cpu else EXCESS_SHARE
    usual = f"all ranks {ms(balance.mean_ns)} on average"
    if alike:
        usual = f"the others {ms(balance.others_ns)} at most, with kernels of as many threads"
    much = f"ank {balance.longest} computes {ms(balance.longest_ns)} a step, {usual}"
    if balance.always_share < least or balance.longest_share < SAME_RANK_SHARE:
        yield Clean(f"r{much}")
        return
    yield Finding(
        title=f"Rank {balance.longest} computes longer than the other ranks",
        evidence=(
            Evidence(
                f"R{much}. In {percent(balance.longest_share)} of the steps no other rank computes for as long.",
                spared_ns if alike else balance.always_ns,
                "ns",
            ),
        ),
        edits=balanced(balance, balance.mended if alike else balance.parts, CPU_EVENED if balance.on_cpu else EVENED),
        fixes=(DEVICE,) if alike else (EVEN,),
        confidence=Confidence(Level.HIGH, "all ranks were recorded in the same steps"),
        basis=Basis.REPLAYED,
    )


EXAMPLES = [
    Fires(  # 60 and 80 ms for the same: the slower device could do it in 60
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
        saving_ms=(14, 20),
    ),
    Fires(  # 60 and 80 ms for a third more: 70 ms each would do
        """
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05 blocks=300
        gpu 20  allreduce 60-99.8 @0.3 group_size=2
        ---
        4 steps of 100
        rank 1 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-80 @0.05 blocks=400
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
