"""Every data-parallel rank updates all parameters.

The ranks reduce the same gradients. Then each rank makes the same update of all parameters.

Why it costs
    An optimizer reads and writes each parameter and its state several times. Each of n ranks could update one n-th. The
    optimizer state also takes memory on every rank.
How to fix
    Shard the update: wrap the optimizer in `ZeroRedundancyOptimizer`, or use `fully_shard` instead of
    DistributedDataParallel. The ranks then exchange the updated parameters.
Ignore when
    the update is a small part of the step, or the links are slow: the parameters travel once more.
Sources
    https://docs.pytorch.org/docs/stable/distributed.optim.html
    https://arxiv.org/abs/1910.02054
"""

from diagnose.facts.communication.overlap import ReplicatedUpdate
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in updates (our choice)
LEAST_NS = 1_000_000  # a step in updates: a fused one of less is quick enough (our choice)
UNEVEN = Between(1.5, 1.1, 1.0)  # of one n-th: parameters are shared out whole, by their sizes (our choice)
LAUNCHES = Between(1.0, 0.8, 0.5)  # of host time for what runs on a device: fewer parameters, but more calls
FULLY = Fix(
    "Shard parameters, gradients and optimizer state with FSDP.",
    after="for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)


@rule("OP03")
def replicated_optimizer(replicated_update: ReplicatedUpdate, steps: Steps) -> Verdicts:
    one = replicated_update
    if one.ranks < 2:
        yield NotApplicable("ranks do not reduce gradients together")
    elif one.sharded:
        yield Clean("each rank updates a part of the parameters")
    elif one.update_ns < max(WORTH_SHARE * steps.mean_ns, LEAST_NS):
        yield Clean(f"updating all parameters takes {ms(one.update_ns)}/step")
    elif _left(one).likely >= 1.0:
        yield Clean(f"gathering the parameters updated by {one.ranks} ranks would cost as much as it saves")
    else:
        yield _found(one, steps)


def _left(one: ReplicatedUpdate) -> Between:
    """Of the update's time: the own part of a rank, and gathering the others'."""
    parts = [times / one.ranks for times in (UNEVEN.low, UNEVEN.likely, UNEVEN.high)]
    low, likely, high = (part + ns / one.update_ns for part, ns in zip(parts, one.gather_ns[::-1], strict=True))
    return Between(low, likely, high)


def _found(one: ReplicatedUpdate, steps: Steps) -> Finding:
    left, size = _left(one), "" if one.gradient_bytes is None else f" ({bytes_(one.gradient_bytes)})"
    edits = (
        (Shorten(Times(one.track, one.times), left),)
        if one.on_cpu
        else (Shorten(one.work_ids, left), Shorten(one.op_ids, LAUNCHES))
    )
    return Finding(
        evidence=(
            Evidence(
                f"Each of {one.ranks} ranks updates all parameters: {ms(one.update_ns)}/step,"
                f" {percent(one.update_ns / steps.mean_ns)} of the step.",
                one.update_ns,
                "ns",
            ),
            Evidence(
                f"Sharded, each rank updates 1/{one.ranks}. Gathering the parameters{size} then takes about"
                f" {about(one.gather_ns[1])}.",
                one.gather_ns[1],
                "ns",
            ),
            Evidence(f"Optimizer state would take 1/{one.ranks} of its memory on each rank."),
        ),
        edits=edits,
        fixes=(FULLY,) if one.split else (_zero(one.optimizers[0]), FULLY),
        confidence=Confidence(Level.MEDIUM, "an even split of the parameters is assumed"),
    )


def _zero(optimizer: str) -> Fix:
    return Fix(
        "Wrap the optimizer in ZeroRedundancyOptimizer, so that each rank updates its part.",
        before=f"optimizer = {optimizer}(model.parameters(), lr=lr)",
        after="from torch.distributed.optim import ZeroRedundancyOptimizer\n"
        f"optimizer = ZeroRedundancyOptimizer(model.parameters(), {optimizer}, parameters_as_bucket_view=True, lr=lr)",
        link="https://docs.pytorch.org/docs/stable/distributed.optim.html",
    )


EXAMPLES = [
    Fires(  # of 40 ms on 4 ranks 10 stay, 11 or 15, and 5 to gather, 5 or 10
        """
        4 steps of 100
        rank 0 of 4
        cpu     DistributedDataParallel.forward 0-0.5 | optimizer 2-3 | aten::_fused_adamw_ 2.1-2.9 | sync 4-99.99
        cpu     "autograd::engine::evaluate_function: MmBackward0" 1-1.6 | c10d::allreduce_ 1.1-1.5
        gpu     bf16_gemm 0.45-59.94 @0.4 | adam 59.95-99.95 @2.2
        gpu 20  allreduce 49.9-59.9 @1.2 operation=allreduce in_elements=100000000 dtype=Float group_size=4
        """,
        saving_ms=(15, 25),
    ),
    # each rank updates a part, and sends it to the others
    Silent("""
        4 steps of 100
        rank 0 of 4
        cpu     DistributedDataParallel.forward 0-0.5 | device_sync 4-99.9
        cpu     "Optimizer.step#ZeroRedundancyOptimizer.step" 2-3.5 | optimizer 2.05-2.95
        cpu     aten::_fused_adamw_ 2.1-2.9 | c10d::broadcast_ 3-3.2
        cpu     "autograd::engine::evaluate_function: MmBackward0" 1-1.5 | c10d::allreduce_ 1.1-1.4
        gpu     bf16_gemm 0.5-49 @0.4 | adam 59.8-79.8 @2.2
        gpu 20  allreduce 49-59 @1.2 operation=allreduce in_elements=100000000 dtype=Float group_size=4
        gpu 20  nccl 80-85 @3.1 operation=broadcast in_elements=25000000 dtype=Float group_size=4
    """),
    # over slow links gathering takes longer
    Silent("""
        4 steps of 100
        rank 0 of 4
        cpu     DistributedDataParallel.forward 0-0.5 | optimizer 2-3 | aten::_fused_adamw_ 2.1-2.9 | device_sync 4-99.9
        cpu     "autograd::engine::evaluate_function: MmBackward0" 1-1.5 | c10d::allreduce_ 1.1-1.4
        gpu     bf16_gemm 0.5-9 @0.4 | adam 89.9-99.8 @2.2
        gpu 20  allreduce 9-89 @1.2 operation=allreduce in_elements=100000000 dtype=Float group_size=4
    """),
    CannotTell("4 steps of 100\ncpu  optimizer 0-10", because="device work"),
]
