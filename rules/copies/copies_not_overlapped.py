"""Host-to-device copies are not overlapped with compute.

Batches are pinned, but copied on the compute stream, or the CPU waits for each copy.

Why it costs
    The GPU copies and computes with separate engines. One after the other they take the sum of both times.
How to fix
    Copy asynchronously, one batch ahead, on a separate stream. Send bytes instead of floats.
Ignore when
    the copy is short, or memory has no room for another batch.
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
    "Copy the next batch on a separate stream while this one computes.",
    after="with torch.cuda.stream(copying):  # copying = torch.cuda.Stream(), once\n"
    "    x_next = x_next.to(device, non_blocking=True)\n"
    "now = torch.cuda.current_stream(); now.wait_stream(copying); x_next.record_stream(now)  # before use",
    effort=2,
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)


@rule("HD02")
def copies_not_overlapped(transfers: tuple[Transfer, ...], steps: Steps) -> Verdicts:
    fast = [one for one in transfers if one.direction is Direction.H2D and one.host_memory is not HostMemory.PAGEABLE]
    large = [one for one in fast if one.largest_bytes is None or one.largest_bytes >= LEAST_BYTES]
    pinned = [one for one in large if not one.offloads]
    total = sum(one.exposed_ns + one.call_idle_ns for one in pinned)
    if total >= WORTH_SHARE * steps.mean_ns and any(one.largest_bytes is None for one in pinned):
        raise Missing("sizes of copies", "Record with a current PyTorch: older ones on ROCm leave them out.")
    if total < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"exposed copies to the GPU take {percent(total / steps.mean_ns)} of the step")
        return
    for one in pinned:
        exposed = f"Copies to the GPU ({bytes_(one.bytes or 0)}/step) are exposed for {ms(one.exposed_ns)}/step"
        waits = ", and the CPU waits for them" * (len(one.sync_ids) > 0)
        yield Finding(
            evidence=(Evidence(f"{exposed}{waits}.", one.exposed_ns, "ns"),),
            edits=(Move(one.ids, SPEED), Detach(one.sync_ids)),
            fixes=(AHEAD,),
            confidence=Confidence(Level.MEDIUM, "whether the batch is ready a step earlier is not recorded"),
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
    # on a stream of its own, beside the kernels
    Silent("""
        5 steps of 100
        cpu  aten::to 0-0.1 | aten::mm 1-2 | sync 3-99.51
        gpu 20 h2d 2-32 @0.05 pinned 700MB
        gpu  sgemm 1.1-99.5 @1.05
    """),
]
