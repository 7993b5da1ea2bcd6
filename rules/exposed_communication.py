"""The GPU communicates and computes nothing meanwhile.

While a collective runs that no compute hides, the GPU's arithmetic units wait for the network, or for another rank.

Why it costs
    Communication that runs beside compute is free; what is not hidden adds to every step.

How to fix
    Start each collective as soon as its input is ready and wait for it as late as possible. DDP and FSDP do so by
    themselves if the buckets and the wrapped blocks are neither too large nor too small. What compute is too short to
    hide needs fewer or smaller messages: a larger batch per rank, or bf16 gradients.

Ignore when
    this rank waits for a slower one: then that one has to be fixed. The recordings of all ranks tell.

Sources
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from diagnose.rule import (
    Basis,
    Between,
    CannotTell,
    Clean,
    Confidence,
    Evidence,
    Exposure,
    Finding,
    Fires,
    Fix,
    Level,
    NotApplicable,
    Safety,
    Shorten,
    Silent,
    Verdicts,
    ms,
    percent,
    rule,
)  # fmt: skip

EXPOSED_SHARE = 0.10  # of the step: TensorBoard's threshold; below it special rules may still find something
LIKELY_SHARE = 0.5  # of what compute could hide besides: half-way to the ideal (our choice)


@rule("CO01")
def exposed_communication(exposure: Exposure) -> Verdicts:
    hideable = exposure.hideable_share
    if not exposure.ns:
        yield NotApplicable("nothing is communicated on the device")
    elif exposure.share < EXPOSED_SHARE:
        yield Clean(f"exposed communication takes {ms(exposure.exposed_ns)} a step, {percent(exposure.share)}")
    elif not hideable:
        yield Clean("communication is exposed, but no compute is left to hide more of it")
    else:
        yield Finding(
            evidence=(
                Evidence(
                    f"Of {ms(exposure.ns)} of communication a step, {ms(exposure.exposed_ns)} run while the GPU computes"
                    f" nothing: {percent(exposure.share)} of the step, transfer and waiting for other ranks together.",
                    exposure.exposed_ns, "ns", primary=True,
                ),
                Evidence(
                    f"There are {ms(exposure.compute_ns)} of compute to hide it behind. The saving is an upper bound:"
                    " waiting for a slower rank cannot be hidden. Record all ranks to tell it from transfer.",
                    exposure.compute_ns, "ns",
                ),
            ),
            edits=(Shorten(exposure.ids, Between(1, 1 - LIKELY_SHARE * hideable, 1 - hideable)),),
            fixes=(
                Fix(
                    "Let collectives run beside the backward pass: tune the bucket size of DDP, let FSDP prefetch.",
                    before="DistributedDataParallel(model)",
                    after="DistributedDataParallel(model, bucket_cap_mb=50)  # try 10, 25, 50, 100",
                    safety=Safety.ROUNDING, effort=2, link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
                ),
                Fix(
                    "Communicate less often: give each rank a larger batch, or accumulate gradients under no_sync().",
                    safety=Safety.NEEDS_JUDGEMENT, effort=2,
                    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
                ),
            ),
            confidence=Confidence(Level.LOW, "one rank's recording does not tell transfer from waiting for other ranks"),
            basis=Basis.RULE_OF_THUMB,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # 60 ms could hide 54: all of the 40, if the other ranks are not the reason
        """
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | wait 0.5-0.51 stream=7 | device_sync 1-99.9
        gpu     sgemm 0.1-60 @0.05
        gpu 20  allreduce 60-99.8 @0.3
        """,
        saving_ms=(0, 39.8),
    ),
    Silent(  # the same, hidden
        """
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-99.8 @0.05
        gpu 20  allreduce 50-90 @0.3
        """
    ),
    Silent(  # the host is late for other reasons: the GPU would be idle in place of communicating
        """
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | "train.py(9): log" 1-99 | aten::mm 99-99.1
        gpu     sgemm 0.1-30 @0.05 | sgemm 99.1-99.9 @99.05
        gpu 20  allreduce 30-50 @0.3
        """
    ),
    CannotTell(
        """
        4 steps of 100
        cpu  aten::mm 0-0.1 | c10d::allreduce_ 0.2-80
        """,
        because="device work",
    ),
]
