"""Tiny copies between CPU and GPU in every step.

Numbers and small tensors are created on the CPU and copied one by one.

Why it costs
    Each copy takes about 10 us of CPU time, however small, and more if the CPU waits for it.
How to fix
    Create tensors on the GPU: `torch.zeros(..., device=device)`. Combine small ones into one copy; keep constants on
    the GPU.
Ignore when
    the GPU has enough work queued.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.device.transfers import HostBorn, Transfer
from diagnose.rulekit.vocabulary import *

COPIES = 50  # a step (our choice)
IDLE_SHARE = 0.01  # of the step idle while the host is at them: then fewer count as well (our choice)
READS = "aten::item aten::is_nonzero aten::equal aten::_local_scalar_dense"  # scalar_syncs (SY01) names these
MADE = 2  # makers that are named (our choice)
LEFT = Between(0.5, 0.1, 0.02)  # of their time, when made on the GPU or moved at once (our choice)


@rule("HD03")
def tiny_copies(
    tiny_copies: tuple[Transfer, ...], steps: Steps, host_born: tuple[HostBorn, ...] | None = None
) -> Verdicts:
    between = [one for one in tiny_copies if one.direction in (Direction.H2D, Direction.D2H)]
    waited = [one for one in between if one.host_memory is not HostMemory.PINNED or len(one.sync_ids)]
    mine = sorted((one for one in waited if one.asked_by not in READS.split()), key=lambda one: -one.host_ns)
    count, idle = sum(one.copies for one in mine), sum(one.host_idle_ns for one in mine)
    if count < COPIES and idle < IDLE_SHARE * steps.mean_ns:
        yield Clean(f"{count} tiny copies per step")
        return
    idles = f"{count} copies under 64 KiB per step: the GPU idles {ms(idle)} while the CPU starts them."
    call, often, ns = called(mine[0].asked_by or "cudaMemcpy"), mine[0].total_copies / steps.count, mine[0].host_ns
    yield Finding(
        evidence=(
            Evidence(idles, idle, "ns"),
            Evidence(f"Longest: `{call}`, {often:.3g} per step, {ms(ns)} of CPU time.", ns, "ns"),
            *(
                Evidence(f"`{one.made_by}` builds {one.total_calls / steps.count:.3g} of these tensors per step.")
                for one in (host_born or ())[:MADE]
            ),
        ),
        edits=(
            *(Shorten(one.call_ids, LEFT) for one in mine),
            *(Shorten(one.op_ids, LEFT) for one in mine),
            *(Detach(one.sync_ids) for one in mine),
        ),
        fixes=(
            Fix(
                "Create small tensors on the GPU; combine the others into one copy.",
                after="mask = torch.zeros(n, device=device)",
                effort=2,
                link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
            ),
        ),
        confidence=Confidence(Level.MEDIUM, "which of the copies can go is not recorded"),
        site=mine[0].site,
        host_bound=True,
    )


EXAMPLES = [
    Fires("""
        4 steps of 20
        cpu  aten::to 0-0.09 x100 every 0.1 | sync 0.04-0.08 x100 every 0.1 | aten::mm 11-12 | sync 13-19.01
        gpu  h2d 0.03-0.035 @0.01-0.03 pageable 64B x100 every 0.1 | sgemm 11.1-19 @11.05
    """),
    Silent("""
        4 steps of 20
        cpu  aten::to 0-0.09 | aten::mm 11-12 | sync 13-19.01
        gpu  h2d 0.03-0.035 @0.01-0.03 pageable 64B | sgemm 11.1-19 @11.05
    """),
]
