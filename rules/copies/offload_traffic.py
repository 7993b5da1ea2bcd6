"""Weights or states are copied between CPU and GPU.

CPU offload (FSDP's `CPUOffload`, DeepSpeed's ZeRO-Offload, `device_map` with "cpu") sends gigabytes through PCIe in
each step. Batches are rarely as large.

Why it costs
    PCIe moves 12 to 55 GB/s, the GPU's own memory 900 to 8,000. Copying a weight takes longer than computing with it,
    so the GPU waits even if copies overlap with compute.
How to fix
    Keep on the GPU what fits. Make it fit: frozen weights in 16 bits or fewer, sharding over more GPUs, activation
    checkpointing, a smaller batch. Pin what stays in CPU memory, and prefetch the next layer.
Ignore when
    the copies are batches, such as volumes or videos.
Sources
    https://docs.pytorch.org/docs/stable/fsdp.html
    https://www.deepspeed.ai/tutorials/zero-offload
"""

from diagnose.facts.core.steps import Measure
from diagnose.facts.device.transfers import Transfer
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in which the GPU only copies, or the host waits for the copy (our choice)
TOLD = "that these are weights is inferred from the size of the copies"
LEFT = Between(0.5, 0.0, 0.0)  # of the copies: half of the bytes, or none


@rule("HD04")
def offload_traffic(transfers: tuple[Transfer, ...], steps: Steps) -> Verdicts:
    large = [transfer for transfer in transfers if transfer.offloads]
    waits = sum(one.exposed_ns + one.call_idle_ns for one in large)
    unknown = sum(transfer.exposed_ns + transfer.call_idle_ns for transfer in transfers if transfer.bytes is None)
    if not large and unknown >= WORTH_SHARE * steps.mean_ns:
        raise Missing("sizes of copies", "Record with a current PyTorch: older ones on ROCm leave them out.")
    if not large:
        yield NotApplicable("no op copies a gigabyte per step between CPU and GPU, in eight copies or more")
    elif waits < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"the GPU waits for copies of gigabytes for {percent(waits / steps.mean_ns)} of the step")
    else:
        moved = sum(one.bytes or 0 for one in large)
        copies, exposed_ns = sum(one.copies for one in large), sum(one.exposed_ns for one in large)
        text = f"{copies:,} copies per step ({bytes_(moved)} in all) are exposed for {ms(exposed_ns)}/step."
        yield Finding(
            evidence=(Evidence(text, moved, "bytes"),),
            edits=tuple(edit for one in large for edit in (Shorten(one.ids, LEFT), Detach(one.sync_ids))),
            fixes=(
                Fix("Keep weights and states on the GPU, in 16 bits or fewer if needed.", safety=Safety.PRECISION),
                Fix("Shard them over more GPUs instead of offloading them.", effort=3, safety=Safety.ROUNDING),
            ),
            confidence=Confidence(Level.LOW, f"{TOLD}; no steps are marked, so it may be start-up")
            if steps.measure is Measure.WINDOW
            else Confidence(Level.MEDIUM, TOLD),
            basis=Basis.RULE_OF_THUMB,
            site=large[0].site,
        )


EXAMPLES = [
    Fires(  # 60 ms of copies: half of it at least
        """
        5 steps of 100
        cpu  aten::copy_ 0-0.05 x8 every 0.1 | aten::mm 1-2 | sync 3-99.51
        gpu  h2d 0.1-7.4 @0.01 pinned 175MB | h2d 7.5-14.8 @0.11 pinned 175MB
        gpu  h2d 14.9-22.2 @0.21 pinned 175MB | h2d 22.3-29.6 @0.31 pinned 175MB
        gpu  h2d 29.7-37.0 @0.41 pinned 175MB | h2d 37.1-44.4 @0.51 pinned 175MB
        gpu  h2d 44.5-51.8 @0.61 pinned 175MB | h2d 51.9-59.2 @0.71 pinned 175MB
        gpu  sgemm 60.1-99.5 @1.05
        """,
        saving_ms=(29.9, 59.8),
    ),
    CannotTell(
        """
        5 steps of 100
        cpu  aten::copy_ 0-0.1 | aten::mm 1-2 | sync 3-99.51
        gpu  h2d 0.1-30 @0.05 pinned | sgemm 30.1-99.5 @1.05
        """,
        because="sizes of copies",
    ),
    # one batch
    Silent("""
        5 steps of 100
        cpu  aten::to 0-0.1 | aten::mm 1-2 | sync 3-99.51
        gpu  h2d 0.1-60 @0.05 pinned 1400MB | sgemm 60.1-99.5 @1.05
    """),
    # beside compute
    Silent("""
        5 steps of 100
        cpu  aten::copy_ 0-0.05 x8 every 0.1 | aten::mm 1-2 | sync 3-99.51
        gpu 20 h2d 0.1-7.4 @0.01 pinned 175MB | h2d 7.5-14.8 @0.11 pinned 175MB
        gpu 20 h2d 14.9-22.2 @0.21 pinned 175MB | h2d 22.3-29.6 @0.31 pinned 175MB
        gpu 20 h2d 29.7-37.0 @0.41 pinned 175MB | h2d 37.1-44.4 @0.51 pinned 175MB
        gpu 20 h2d 44.5-51.8 @0.61 pinned 175MB | h2d 51.9-59.2 @0.71 pinned 175MB
        gpu  sgemm 1.3-99.5 @1.05
    """),
]
