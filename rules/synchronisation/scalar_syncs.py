""".item() syncs every step.

`.item()`, `.cpu()`, `float(tensor)`, `if tensor:` and printing a tensor wait until the GPU has finished all queued
work.

Why it costs
    While the CPU waits it launches nothing. The GPU then idles until the next launch.
How to fix
    Accumulate losses and metrics on the GPU, and call `.item()` every 100 steps. Copy whole tensors to pinned memory
    with `non_blocking=True`, and use them a step later.
Ignore when
    the next decision needs the value at once, and cannot be made on the GPU.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    https://docs.pytorch.org/docs/stable/notes/cuda.html
"""

from diagnose.facts.host.waits import HostWait, WaitReason
from diagnose.rulekit.vocabulary import *

EVERY_STEPS = 2  # reads in fewer than half of the steps are fine: occasional logging is what the fix recommends
ADD_UP = Fix(
    "Accumulate the value on the GPU, and call `.item()` every 100 steps.",
    after="total += loss.detach()  # total.item() once every 100 steps",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
LATER = Fix(
    "Copy to pinned memory with non_blocking=True, and use the result a step later.",
    after="kept.append(pinned.copy_(features, non_blocking=True))  # `pinned` of its own for each step\n"
    "copied.record()  # a torch.cuda.Event; copied.synchronize() before it is used",
    effort=2,
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)


@rule("SY01")
def scalar_syncs(host_waits: tuple[HostWait, ...], steps: Steps) -> Verdicts:
    number, tensor = WaitReason.SCALAR_READ, WaitReason.TENSOR_READ
    reads = [wait for wait in host_waits if wait.reason is number or (wait.reason is tensor and wait.asked_by)]
    frequent = [wait for wait in reads if wait.steps_seen * EVERY_STEPS >= steps.count]
    if not frequent:
        yield Clean(f"{sum(wait.total_calls for wait in reads)} syncs by reads of GPU tensors in {steps.count} steps")
    for wait in frequent:
        is_number, call = wait.reason is number, called(wait.asked_by or wait.call)
        yield Finding(
            title=f"`{call}` syncs {'every step' if wait.steps_seen == steps.count else 'the CPU with the GPU'}"
            if is_number
            else f"`{call}` copies to the CPU and waits",
            evidence=(Evidence(waited(wait, steps), wait.blocked_ns, "ns"),),
            edits=(Remove(wait.op_ids[wait.op_ids >= 0]), Detach(wait.ids)),
            fixes=(ADD_UP if is_number else LATER,),
            confidence=Confidence(
                Level.HIGH if is_number else Level.MEDIUM,
                "the wait and the GPU's idle time are recorded"
                + "; whether the result can wait a step is not" * (not is_number),
            ),
            site=wait.site,
            host_bound=True,
            after=frozenset({"ST01"}),  # a late rank's host time would only hide behind the GPU
        )


EXAMPLES = [
    Fires(  # 40 ms of host work that could run while the GPU works, if nobody waited
        """
        4 steps of 100
        cpu  aten::mm 40-41 | aten::item 42-100 | sync 43-99
        gpu  sgemm 40.01-98 @40 | d2h 98.5-98.51 @42.5 8B
        """,
        saving_ms=(41.3, 41.7),
    ),
    Fires(  # the op around the read multiplies, too: that stays, and the GPU's 66.4 ms and their pauses are left
        """
        4 steps of 100
        cpu  aten::linalg_cholesky 1-80 | aten::mm 2-3 | aten::item 10-61.5 | sync 11-60.6 | aten::add 90-90.1
        gpu  sgemm 2.5-60 @2.1 | d2h 60.5-60.51 @10.5 8B | pointwise 90.1-99 @90.05
        """,
        saving_ms=(32.3, 32.6),
    ),
    Fires(  # a tensor, of which the copy stays; the host's 40 ms go beside the GPU's work
        """
        4 steps of 100
        cpu  aten::mm 40-41 | aten::to 42-100 | sync 43-99
        gpu  sgemm 40.01-98 @40 | d2h 98.5-98.6 @42.5 pageable 4MB
        """,
        saving_ms=(41.2, 41.7),
    ),
    # all that is left for the host to do is quick: the GPU is idle for 0.1 ms of 100
    Silent("""
        4 steps of 100
        cpu  aten::mm 0.01-0.03 | aten::item 0.1-99.95 | sync 0.12-99.94
        gpu  sgemm 0.04-99.9 @0.02 | d2h 99.91-99.92 @0.11 8B
    """),
]
