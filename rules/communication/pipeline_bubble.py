"""Ranks of a pipeline wait for each other.

A pipeline rank computes only while it has a micro-batch. The rest of the step is its bubble.

Why it costs
    A step takes the slowest stage's time for all micro-batches, plus the other stages' time for one. A stage that
    computes longer delays all others in every micro-batch.
How to fix
    Give all stages equal compute. Then use more micro-batches, which shorten both ends of a step. Each costs overhead,
    so too many lose. An interleaved schedule also shortens both ends, and communicates more.
Ignore when
    memory decides where layers are, or micro-batches have one sample.
Sources
    https://arxiv.org/abs/2104.04473
    https://docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from diagnose.facts.communication.balance import Stages
from diagnose.rulekit.vocabulary import *

EVENED = Between(0.5, 0.9, 1.0)  # of the difference: layers are not divisible (our choice)
TIMES = 2  # as many micro-batches
COST = Between(3.0, 2.0, 1.0)  # times what is seen of a micro-batch's own cost: in 4 and 8 half of it was inside ops
PIPELINING = "https://docs.pytorch.org/docs/stable/distributed.pipelining.html"

INTERLEAVE = Fix(
    "Or interleave several stages per rank (Megatron-LM: --num-virtual-stages-per-pipeline-rank).",
    after="ScheduleInterleaved1F1B([first, second], n_microbatches=m)",
    safety=Safety.ROUNDING,
    effort=2,
    link=PIPELINING,
)


@rule("CO12")
def pipeline_bubble(stages: Stages | None) -> Verdicts:
    if stages is None:
        yield NotApplicable("ranks send no activations on: there is no pipeline")
        return
    if stages.uneven:
        yield uneven(stages)
    elif COST.likely * (TIMES - 1) * stages.micro_batches * stages.cost_ns < filling_ns(stages) * (1 - 1 / TIMES):
        yield few(stages)
    else:
        between = f"{ms(stages.compute_ns.min())} to {ms(stages.compute_ns.max())}"
        more = f"more than {stages.micro_batches} micro-batches would cost as much as they save"
        yield Clean(f"stages compute {between} per step, and {more}")


def filling_ns(stages: Stages) -> float:
    """Of the other stages for one micro-batch: the pipeline fills and drains that long."""
    return float(stages.compute_ns.sum() - stages.compute_ns.max()) / stages.stages_per_rank / stages.micro_batches


def name(stages: Stages, place: int) -> str:
    held = stages.held[place]
    return f"stage{'s' * (len(held) > 1)} {', '.join(map(str, held))}"


def on(stages: Stages, place: int) -> str:
    ranks = stages.ranks[place]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:4]))}{', ...' * (len(ranks) > 4)}"


def uneven(stages: Stages) -> Finding:
    longest, mean = stages.longest, stages.compute_ns.mean()
    shortest = int(stages.compute_ns.argmin())
    moved = 1.0 - mean / stages.compute_ns[longest]
    shares = ", ".join(f"{name(stages, at)} {ms(ns)}" for at, ns in enumerate(stages.compute_ns[:8]))
    which = f"{name(stages, longest)} ({on(stages, longest)})"
    return Finding(
        title=f"Pipeline {which} computes longer than the others",
        evidence=(
            Evidence(
                f"Pipeline {which} computes {ms(stages.compute_ns[longest])}/step, all stages {ms(mean)} on average.",
                stages.compute_ns[longest] - mean,
                "ns",
            ),
            Evidence(f"Bubble: {percent(stages.idle_share)} of the step; {percent(stages.ideal_idle_share)} if even."),
            Evidence(f"Compute per step: {shares}{', ...' * (len(stages.ranks) > 8)}."),
        ),
        edits=(Even(stages.even, EVENED),),
        fixes=(
            Fix(
                f"Move about {percent(moved)} of the compute of {name(stages, longest)} to other stages;"
                f" {name(stages, shortest)} computes least.",
                after='split_spec = {"layers.7": SplitPoint.BEGINNING}  # where each stage begins',
                safety=Safety.ROUNDING,
                effort=2,
                link=PIPELINING,
            ),
        ),
        confidence=Confidence(Level.MEDIUM, "all stages are recorded; which layers can move is not known"),
    )


def few(stages: Stages) -> Finding:
    count = stages.micro_batches
    cost = Between(*(times * stages.cost_ns for times in (COST.low, COST.likely, COST.high)))
    return Finding(
        title="Few micro-batches leave the pipeline idle",
        evidence=(
            Evidence(
                f"Filling and draining take {ms(filling_ns(stages))}/step: with {count} micro-batches,"
                f" {percent(stages.idle_share)} of the step is bubble, {percent(stages.ideal_idle_share)} if even.",
                filling_ns(stages),
                "ns",
            ),
            Evidence(f"Each micro-batch costs {ms(stages.cost_ns)} besides compute."),
        ),
        edits=(Rechunk(stages.positions, count, TIMES, stages.stages_per_rank, cost),),
        fixes=(
            Fix(
                f"Split the batch into {TIMES * count} micro-batches, and measure.",
                after=f"Schedule1F1B(stage, n_microbatches={TIMES * count})  # or another schedule",
                safety=Safety.ROUNDING,
                link=PIPELINING,
            ),
            *([INTERLEAVE] if stages.stages_per_rank == 1 else []),
        ),
        confidence=Confidence(Level.MEDIUM, "the overhead of smaller micro-batches on this GPU is not known"),
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    Fires(  # forward and backward take 10 ms each on one rank, 20 on the other: 100 ms; 15 each would take 90
        """
        4 steps of 100.5
        rank 0 of 2
        cpu     aten::mm 0-0.1 | device_sync 0.3-100
        gpu     sgemm 0.1-10 @0.05 | sgemm 10-20 @0.06 | sgemm 50-60 @0.07 | sgemm 90-100 @0.08
        gpu 20  nccl 10-10.1 @0.2 operation=send to=1 | nccl 20.2-50 @0.21 operation=recv from=1
        gpu 21  nccl 20-20.1 @0.22 operation=send to=1 | nccl 60-90 @0.23 operation=recv from=1
        ---
        4 steps of 100.5
        rank 1 of 2
        cpu     aten::mm 0-0.1 | device_sync 0.3-90.1
        gpu     sgemm 10.1-30 @0.05 | sgemm 30-50 @0.06 | sgemm 50-70 @0.07 | sgemm 70-90 @0.08
        gpu 20  nccl 0.3-10.1 @0.2 operation=recv from=0 | nccl 50-50.1 @0.21 operation=send to=0
        gpu 21  nccl 20-20.1 @0.22 operation=recv from=0 | nccl 90-90.1 @0.23 operation=send to=0
        """,
        saving_ms=(5, 10),
    ),
    Fires(  # 2 micro-batches of 20 ms through 2 stages: 60 ms; 4 of 10 ms would take 50
        """
        4 steps of 61
        rank 0 of 2
        cpu     aten::mm 0-0.1 | device_sync 0.3-60
        gpu     sgemm 0.1-10 @0.05 | sgemm 10-20 @0.06 | sgemm 30-40 @0.07 | sgemm 50-60 @0.08
        gpu 20  nccl 10-10.1 @0.2 operation=send to=1 | nccl 20.2-30 @0.21 operation=recv from=1
        gpu 21  nccl 20-20.1 @0.22 operation=send to=1 | nccl 40-50 @0.23 operation=recv from=1
        ---
        4 steps of 61
        rank 1 of 2
        cpu     aten::mm 0-0.1 | device_sync 0.3-50.1
        gpu     sgemm 10.1-20 @0.05 | sgemm 20-30 @0.06 | sgemm 30-40 @0.07 | sgemm 40-50 @0.08
        gpu 20  nccl 0.3-10.1 @0.2 operation=recv from=0 | nccl 30-30.1 @0.21 operation=send to=0
        gpu 21  nccl 20-20.1 @0.22 operation=recv from=0 | nccl 50-50.1 @0.23 operation=send to=0
        """,
        saving_ms=(7.7, 9.2),
    ),
    # the same, but each micro-batch costs 13 ms besides
    Silent("""
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | device_sync 0.3-60
        gpu     sgemm 0.1-10 @0.05 | sgemm 10-20 @0.06 | sgemm 30-40 @0.07 | sgemm 50-60 @0.08
        gpu 20  nccl 10-10.1 @0.2 operation=send to=1 | nccl 20.2-30 @0.21 operation=recv from=1
        gpu 21  nccl 20-20.1 @0.22 operation=send to=1 | nccl 40-50 @0.23 operation=recv from=1
        ---
        4 steps of 100
        rank 1 of 2
        cpu     aten::mm 0-0.1 | device_sync 0.3-60
        gpu     sgemm 10.1-20 @0.05 | sgemm 20-30 @0.06 | sgemm 30-40 @0.07 | sgemm 40-50 @0.08
        gpu 20  nccl 0.3-10.1 @0.2 operation=recv from=0 | nccl 30-30.1 @0.21 operation=send to=0
        gpu 21  nccl 20-20.1 @0.22 operation=recv from=0 | nccl 50-50.1 @0.23 operation=send to=0
    """),
    CannotTell(
        """
        4 steps of 100
        rank 0 of 2
        cpu     aten::mm 0-0.1 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        gpu 20  nccl 60-60.1 @0.3 operation=send to=1
        """,
        because="the other ranks' recordings",
    ),
]
