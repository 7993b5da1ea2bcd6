"""One rank is slower than the others.

All ranks meet at each collective. The slowest rank sets the pace, and all others wait.

Why it costs
    The step takes as long as the slowest rank. The waiting of the others adds up over all GPUs.
How to fix
    If the kernels of that rank do more, split data evenly, by cost rather than by samples. If they do the same, its GPU
    is slower: check clock, temperature, power limit and other processes. If its CPU is late, log, save and load less
    there.
Ignore when
    the ranks do different work on purpose.
Sources
    https://arxiv.org/abs/2505.05713
"""

from diagnose.facts.communication.balance import Balance, Late
from diagnose.facts.core.breakdown import TimeCause
from diagnose.rulekit.vocabulary import *

SAME_RANK_SHARE = 0.75  # of the steps in which that rank computes longest: of two that take turns one may have 3 of 5
EVENED = Between(0.7, 1.0, 1.0)  # of the difference, on devices of their own (our choice)
CPU_EVENED = Between(0.4, 0.7, 1.0)  # where ranks share a machine: planted cases gained 0.7 of it

EVEN = Fix(
    "Split the work evenly over the ranks by cost, as DistributedSampler does by samples.",
    after="DataLoader(dataset, sampler=DistributedSampler(dataset))",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)
DEVICE = Fix(
    "Check the rank's GPU while it trains: nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE, and other processes.",
    effort=2,
    link="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
)
PROCESSOR = Fix(
    "Check the rank's machine while it trains: other processes, clock throttling, shared cores (top, lscpu).", effort=2
)
SHARDS = Fix(
    "Compare the sizes of the ranks' layer shards: these ranks share each batch.",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html",
)
AS_OTHERS = Fix("Log, evaluate and save less often on that rank, or in a thread.", effort=2)
LOADER = Fix(
    "Compare the rank's DataLoader with the others: workers, storage, time to read a sample.",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html",
)
COLLECT = Fix.of(
    fixes.CollectByHand(value=100),
    "Collect garbage on all ranks in the same steps.",
    after="gc.disable()\n# in the loop\nif step % 100 == 0:\n    gc.collect()",
)
HOST_LATE = "is late on its CPU"
LATE: dict[TimeCause | None, tuple[str, tuple[Fix, ...]]] = {
    TimeCause.LOADER: ("fetches batches for longer than the others", (LOADER,)),
    TimeCause.GARBAGE_COLLECTION: ("collects garbage while the others wait", (COLLECT,)),
    TimeCause.CHECKPOINT: ("saves a checkpoint while the others wait", (AS_OTHERS,)),
}
ALL = Confidence(Level.HIGH, "all ranks were recorded in the same steps")
SOME = Confidence(Level.MEDIUM, "not all ranks were recorded: another rank may be slower still")
HOST = Confidence(Level.MEDIUM, "the extra CPU work is assumed to be avoidable")


@rule("ST01")
def straggler(balance: Balance | None) -> Verdicts:
    if balance is None:
        yield NotApplicable("no other rank does the same work")
        return
    if balance.late is not None:
        yield late(balance, balance.late)
    if balance.holds_more:
        yield NotApplicable("ranks hold different experts or tables: see expert_imbalance")
    elif not balance.surely or balance.longest_share < SAME_RANK_SHARE:
        yield Clean(f"r{compared(balance)}")
    else:
        yield slower(balance)


def compared(balance: Balance) -> str:
    usual = f"the others at most {ms(balance.others_ns)}"
    alike = f", {'for ops on tensors' if balance.on_cpu else 'with kernels'} of the same size" * balance.same_work
    return f"ank {balance.longest} computes {ms(balance.longest_ns)}/step, {usual}{alike}"


def slower(balance: Balance) -> Finding:
    alike, spared_ns = balance.same_work or balance.shares_batch, balance.longest_ns - balance.others_ns
    fixes: tuple[Fix, ...] = (SHARDS,) if balance.shares_batch else (EVEN,)
    slow = PROCESSOR if balance.on_cpu else DEVICE
    if balance.same_work:
        fixes = (slow,)
    elif balance.on_cpu or balance.shares_batch:
        fixes = (*fixes, slow)
    return Finding(
        title=f"Straggler: rank {balance.longest} computes longer than the others",
        evidence=(
            Evidence(f"R{compared(balance)}.", spared_ns if alike else balance.always_ns, "ns"),
            Evidence(f"Rank {balance.longest} computes longest in {percent(balance.longest_share)} of the steps."),
        ),
        edits=(Even(balance.evened if alike else balance.dealt, CPU_EVENED if balance.shared_cores else EVENED),),
        fixes=fixes,
        confidence=ALL if balance.complete else SOME,
    )


def late(balance: Balance, one: Late) -> Finding:
    what, fixes = LATE.get(one.why, (HOST_LATE, (AS_OTHERS,)))
    return Finding(
        title=f"Straggler: rank {one.rank} {what}",
        evidence=(
            Evidence(
                f"Besides compute, rank {one.rank} takes {ms(one.ns)}/step, the others at most {ms(one.others_ns)}.",
                one.ns - one.others_ns,
                "ns",
            ),
            Evidence(f"Rank {one.rank} takes longest in {percent(one.share)} of the steps."),
        ),
        edits=(Even(one.keep, CPU_EVENED if balance.shared_cores else EVENED, Own.OTHER),),
        fixes=fixes,
        confidence=HOST,
        host_bound=True,
        unless_above=True,
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
    # both compute alike, and communicate for long
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
        gpu     sgemm 0.1-61 @0.05
        gpu 20  allreduce 61-99.8 @0.3 group_size=2
    """),
    Fires(  # both compute 60 ms, but the first rank begins 20 ms later
        """
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 20-20.1 | c10d::allreduce_ 20.2-20.4 | device_sync 21-99.9
        gpu     sgemm 20.1-80 @20.05
        gpu 20  allreduce 80-99.8 @20.3 group_size=2
        ---
        4 steps of 100
        rank 1 of 2
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        gpu 20  allreduce 60-99.8 @0.3 group_size=2
        """,
        saving_ms=(14, 20),
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
