"""A larger batch fits the GPU's memory.

Much of a step costs the same whatever the batch size: launches, Python, kernels too small to fill the GPU, parameter
updates. A larger batch spreads these costs over more samples.

Why it costs
    Each sample pays a share of the fixed costs. The smaller the batch, the larger the share.
How to fix
    Double the batch size until memory is nearly full or the time per sample stops falling. With gradient accumulation,
    larger and fewer micro-batches leave the training as it is.
Ignore when
    the batch size is fixed for training quality, or another process needs the memory.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background
"""

from diagnose.facts.host.process import LargerBatch
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in what does not grow with the batch (our choice)


@rule("ME07")
def unused_memory(larger_batch: LargerBatch, steps: Steps) -> Verdicts:
    one, room = larger_batch, f"{bytes_(larger_batch.used_bytes)} of {bytes_(larger_batch.capacity_bytes)}"
    unfilled_ns = round(one.underfilled_ns * (1 - one.filled_share))
    fixed_ns = one.host_idle_ns + unfilled_ns + one.update_ns
    if one.times == 1:
        yield Clean(f"{room} of GPU memory is in use: twice the batch may not fit")
    elif fixed_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"{room} of GPU memory is in use, but the fixed cost per step is only {ms(fixed_ns)}")
    else:
        parts = {
            "of launches and Python": one.host_idle_ns,
            "of kernels too small for this GPU": one.underfilled_ns,
            "of parameter updates": one.update_ns,
        }
        told = ", ".join(f"{ms(ns)} {what}" for what, ns in parts.items() if ns >= WORTH_SHARE * steps.mean_ns)
        likely = max(one.times // 2, 2)
        spread = Between(1 / 2, 1 / likely, 1 / one.times)
        low, mid, high = (max(one.filled_share, 1 / times) for times in (2, likely, one.times))
        yield Finding(
            evidence=(
                Evidence(
                    f"{room} of GPU memory is in use: a batch {one.times} times as large fits.", one.used_bytes, "bytes"
                ),
                Evidence(f"Fixed cost per step, whatever the batch size: {told or ms(fixed_ns)}.", fixed_ns, "ns"),
                Evidence("The saving is per sample: the step itself gets longer."),
            ),
            edits=(
                *(Shorten(Times(*some), spread) for some in one.host_times),
                Shorten(one.update_ids, spread),
                Shorten(one.underfilled_ids, Between((1 + low) / 2, mid + 0.2 * (1 - mid), high)),
            ),
            fixes=(
                Fix.of(
                    fixes.LoaderArgument("batch_size", fixes.Multiple(likely)),
                    f"Try larger batches, up to {one.times}x, and watch samples/s.",
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "memory in use is recorded; kernels of larger batches were not"),
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
            host_bound=one.host_idle_ns > unfilled_ns + one.update_ns,
            per_sample=True,
        )


EXAMPLES = [
    # 90 ops of 18 us, for which the GPU is idle: half to an eighth of their 1.62 ms stays for each sample
    Fires("""
        4 steps of 2
        memory 0.2 of 0.3 GB
        cpu  aten::add 0.1-0.118 x90 every 0.02
        gpu  pointwise 0.111-0.114 @0.104 x90 every 0.02
    """),
    # the same, with memory that is mostly used
    Silent("""
        4 steps of 2
        memory 40 of 50 GB
        cpu  aten::add 0.1-0.118 x90 every 0.02
        gpu  pointwise 0.111-0.114 @0.104 x90 every 0.02
    """),
    # kernels that fill the GPU and keep it busy: each sample costs the same
    Silent("4 steps of 10\nmemory 5 of 10 GB\ncpu  aten::mm 0-0.1 | sync 0.2-9.95\ngpu  bf16_gemm 0.02-9.9 @0.01"),
    CannotTell(
        """
        4 steps of 2
        cpu  aten::add 0.1-0.118 x90 every 0.02
        gpu  pointwise 0.111-0.114 @0.104 x90 every 0.02
        """,
        because="memory events",
    ),
]
