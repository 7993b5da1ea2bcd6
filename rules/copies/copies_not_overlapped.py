"""Host-to-device copies are not overlapped with compute.

Batches are pinned, but copied on the stream that computes, or the host waits for each copy: nothing runs meanwhile.

Why it costs
    The engine that copies is another one than those that compute. One after the other they take the sum of both times.

How to fix
    Copy without waiting for it, and one batch ahead on a stream of its own. Send bytes instead of floats.

Ignore when
    the copy is short, or memory has no room for one more batch.

Sources
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

from diagnose.facts.device.transfers import Transfer
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in which the GPU only copies, or the host waits for the copy (our choice)
LEAST_BYTES = 1_000_000  # the largest copy: smaller ones cost their launch, not their bytes
SPEED = Between(0.8, 1.0, 1.25)  # of the copy when it runs beside compute: both share the memory

AHEAD = Fix(
    "Copy the next batch on a stream of its own while this one is computed.",
    after="copying = torch.cuda.Stream()  # once\n"
    "with torch.cuda.stream(copying):\n    x_next = x_next.to(device, non_blocking=True)\n"
    "torch.cuda.current_stream().wait_stream(copying)  # before x_next is used\n"
    "x_next.record_stream(torch.cuda.current_stream())  # its memory is kept until then",
    effort=2,
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)


@rule("HD02")
def copies_not_overlapped(transfers: tuple[Transfer, ...], steps: Steps) -> Verdicts:
    pinned = [
        transfer
        for transfer in transfers
        if transfer.direction is Direction.H2D
        and transfer.host_memory is not HostMemory.PAGEABLE
        and (transfer.largest_bytes is None or transfer.largest_bytes >= LEAST_BYTES)
        and not transfer.offloads
    ]
    total = sum(one.exposed_ns + one.call_idle_ns for one in pinned)
    if total >= WORTH_SHARE * steps.mean_ns and any(one.largest_bytes is None for one in pinned):
        raise Missing("sizes of copies", "Record with a current PyTorch: older ones on ROCm leave them out.")
    if total < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"exposed copies to the GPU take {percent(total / steps.mean_ns)} of the step")
        return
    for one in pinned:
        yield Finding(
            evidence=(
                Evidence(
                    f"Copies of {bytes_(one.bytes or 0)} a step to the GPU run for {ms(one.exposed_ns)} while it"
                    f" computes nothing{', and the host waits for them' * (len(one.sync_ids) > 0)}.",
                    one.exposed_ns,
                    "ns",
                ),
            ),
            edits=(Move(one.ids, SPEED), Detach(one.sync_ids)),
            fixes=(AHEAD,),
            confidence=Confidence(
                Level.MEDIUM, "the copies are recorded; that the batch is there a step earlier is not"
            ),
            site=one.site,
        )


EXAMPLES = [
    CannotTell(  # how large the copy is: a small one would cost its launch, not its bytes
        """
        5 steps of 100
        cpu  aten::to 0-0.1 | aten::mm 1-2 | sync 3-99.51
        gpu  h2d 0.1-30 @0.05 pinned | sgemm 30.1-99.5 @1.05
        """,
        because="sizes of copies",
    ),
    Fires(
        """
        5 steps of 100
        cpu  aten::to 0-0.1 | aten::mm 1-2 | sync 3-99.51
        gpu  h2d 0.1-30 @0.05 pinned 700MB | sgemm 30.1-99.5 @1.05
        """,
        saving_ms=(29, 29),  # the copy goes on beside the kernel
    ),
    Silent(  # on a stream of its own, beside the kernels
        """
        5 steps of 100
        cpu  aten::to 0-0.1 | aten::mm 1-2 | sync 3-99.51
        gpu 20 h2d 2-32 @0.05 pinned 700MB
        gpu  sgemm 1.1-99.5 @1.05
        """
    ),
]
