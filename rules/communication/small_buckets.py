"""Gradients are all-reduced in many small buckets.

DistributedDataParallel collects gradients in buckets and reduces each bucket when it is full. Here
buckets are small.

Why it costs
    Each reduction takes the latency of a collective, and CPU time to launch it, whatever its size. Reductions that
    outlast the backward pass delay the optimizer.
How to fix
    Keep the default `bucket_cap_mb` (25), or try larger buckets. Gradients share a bucket only if they have one data
    type and device.
Ignore when
    the model is so small that its gradients fit a few buckets anyway.
Sources
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    https://arxiv.org/abs/2006.15704
"""

from diagnose.facts.communication.ddp import Buckets
from diagnose.rulekit.vocabulary import *

LEAST = 4  # buckets in a backward pass: two or three may be of several data types (our choice)
SMALL_BYTES = 1 << 20  # of the smallest: below it latency is what a collective takes (nccl-tests PERFORMANCE.md)
TIMES_USUAL = 2  # as many as the usual size would make (our choice)
CAP = Fix.of(fixes.DdpArgument("bucket_cap_mb", 25), "Use the default bucket size.")


@rule("CO03")
def small_buckets(buckets: Buckets) -> Verdicts:
    if not buckets.calls:
        yield NotApplicable("DistributedDataParallel reduces no gradients")
    elif buckets.calls < max(LEAST, TIMES_USUAL * buckets.usual) or buckets.least_bytes >= SMALL_BYTES:
        yield Clean(f"{buckets.calls} buckets of {bytes_(buckets.bytes)} on average per backward pass")
    else:
        likely = 1.0 - buckets.usual / buckets.calls
        started = Between(1.0 - 0.5 * likely, 1.0 - likely, 1.0 - likely)
        left = Between(0.5 + 0.5 * buckets.left, buckets.left, buckets.left)
        yield Finding(
            evidence=(
                Evidence(
                    f"{buckets.calls} buckets of {bytes_(buckets.bytes)} on average per backward pass;"
                    f" {buckets.usual} would suffice.",
                    buckets.calls,
                    "buckets",
                ),
                Evidence(
                    f"Launching the reductions takes {ms(buckets.host_ns)} of CPU time per step;"
                    f" {ms(buckets.exposed_ns)} is exposed."
                ),
            ),
            edits=(
                Shorten(buckets.op_ids, started),
                Shorten(buckets.ids, left),
                Shorten(Times(buckets.track, buckets.waits), left),
            ),
            fixes=(CAP,),
            confidence=Confidence(Level.MEDIUM, "latency is taken from the shortest reduction"),
            basis=Basis.RULE_OF_THUMB,
            host_bound=buckets.host_ns > buckets.exposed_ns,
        )


EXAMPLES = [
    Fires(  # ten buckets of 0.4 MB take 1.5 ms, nearly all of it latency: two would do with 0.3
        """
        4 steps of 5
        rank 0 of 2
        cpu     DistributedDataParallel.forward 0-0.5 | aten::mm 0.1-0.2 | device_sync 3-4.95
        cpu     "autograd::engine::evaluate_function: MmBackward0" 1-1.15 x10 every 0.16
        cpu     c10d::allreduce_ 1.02-1.12 x10 every 0.16
        gpu     sgemm 0.2-3.3 @0.15
        gpu 20  allreduce 3.3-3.45 @1.05 x10 every 0.16 operation=allreduce in_elements=100000 dtype=Float
        """,
        saving_ms=(0.6, 1.2),
    ),
    Fires(  # nine of 0.4 MB among one of 20, which makes the average large: two or three would do
        """
        4 steps of 8
        rank 0 of 2
        cpu     DistributedDataParallel.forward 0-0.5 | aten::mm 0.1-0.2 | device_sync 3-7.95
        cpu     "autograd::engine::evaluate_function: MmBackward0" 1-1.15 x10 every 0.16
        cpu     c10d::allreduce_ 1.02-1.12 x10 every 0.16
        gpu     sgemm 0.2-3.3 @0.15
        gpu 20  allreduce 3.3-3.45 @1.05 x9 every 0.16 operation=allreduce in_elements=100000 dtype=Float
        gpu 20  allreduce 5-7 @2.49 operation=allreduce in_elements=5000000 dtype=Float
        """,
        saving_ms=(0.6, 1.2),
    ),
    # each of 5 MB: how much of their time is latency is not known
    Silent("""
        4 steps of 20
        rank 0 of 2
        cpu     DistributedDataParallel.forward 0-0.5 | aten::mm 0.1-0.2 | device_sync 3-19.9
        cpu     "autograd::engine::evaluate_function: MmBackward0" 1-1.15 x10 every 0.16
        cpu     c10d::allreduce_ 1.02-1.12 x10 every 0.16
        gpu     sgemm 0.2-3.3 @0.15
        gpu 20  allreduce 3.3-3.45 @1.05 x10 every 0.16 operation=allreduce in_elements=1250000 dtype=Float
    """),
    # two buckets
    Silent("""
        4 steps of 20
        rank 0 of 2
        cpu     DistributedDataParallel.forward 0-0.5 | aten::mm 0.1-0.2 | device_sync 3-19.9
        cpu     "autograd::engine::evaluate_function: MmBackward0" 1-1.15 x2 every 0.16
        cpu     c10d::allreduce_ 1.02-1.12 x2 every 0.16
        gpu     sgemm 0.2-2.9 @0.15
        gpu 20  allreduce 3-3.1 @1.05 x2 every 0.16 operation=allreduce in_elements=100000 dtype=Float
    """),
    CannotTell("gpu 20  allreduce 1-2", because="framework ops"),
]
