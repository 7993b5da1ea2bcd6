"""Communication is not overlapped with compute.

While a collective runs without compute beside it, the GPU waits for the network, or for another rank.

Why it costs
    Communication beside compute is almost free. Exposed communication adds to every step.

How to fix
    Start collectives earlier. DDP: smaller `bucket_cap_mb`. FSDP: wrap each transformer block, and prefetch.

Ignore when
    this rank waits for a slower one: then that one has to be fixed. The recordings of all ranks tell.

Sources
    https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from diagnose.facts.communication.overlap import Exposure
from diagnose.rulekit.vocabulary import *

EXPOSED_SHARE = 0.01  # of the step (our choice)
LIKELY_SHARE = 0.5  # we assume that half of the communication that could overlap does (our choice)


OVERLAP = Fix(
    "Start collectives earlier, beside the backward pass: smaller buckets in DDP, prefetching in FSDP.",
    after="DDP(model, bucket_cap_mb=10)  # not 25\nlayers[0].set_modules_to_forward_prefetch([layers[1]])  # FSDP",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
)
LESS = Fix(
    "Communicate less often: give each rank a larger batch, or accumulate gradients under no_sync().",
    safety=Safety.NEEDS_JUDGEMENT,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
)

ALONE = Confidence(Level.LOW, "one rank alone does not tell transfer from waiting for other ranks: record all")
COMPARED = Confidence(Level.MEDIUM, "how early the collectives could start is not recorded")


@rule("CO01")
def exposed_communication(exposure: Exposure) -> Verdicts:
    hideable = exposure.hideable_share
    waited = exposure.waiting_ns
    of_it = "with waiting for other ranks" if waited is None else f"without {ms(waited)} of waiting for other ranks"
    carried = "" if exposure.bytes is None else f" to carry {bytes_(exposure.bytes)}"
    if not exposure.ns:
        yield NotApplicable("nothing is communicated on the device")
    elif exposure.share < EXPOSED_SHARE:
        yield Clean(f"exposed communication takes {percent(exposure.share)} of the step, {of_it}")
    elif not hideable:
        yield Clean(f"{percent(exposure.share)} of the step is exposed communication, but compute hides all it can")
    else:
        yield Finding(
            evidence=(
                Evidence(
                    f"Communication takes {ms(exposure.ns)} a step{carried}, {ms(exposure.exposed_ns)} of it while the"
                    f" GPU computes nothing: {percent(exposure.share)} of the step, {of_it}.",
                    exposure.exposed_ns,
                    "ns",
                ),
                Evidence(
                    f"The {ms(exposure.compute_ns)} of compute could hide at most {ms(exposure.hideable_ns)} more"
                    + (", if that is transfer: waiting for a slower rank stays." if waited is None else "."),
                    exposure.hideable_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(exposure.ids, Between(1, 1 - LIKELY_SHARE * hideable, 1 - hideable)),),
            fixes=(OVERLAP, LESS) if exposure.compute_ns > exposure.ns else (LESS, OVERLAP),
            confidence=ALONE if waited is None else COMPARED,
            basis=Basis.RULE_OF_THUMB,
        )


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
