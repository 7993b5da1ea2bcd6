"""Tiny copies between host and device keep the host busy.

Numbers and small tensors are made on the host and moved one by one.

Why it costs
    Each copy costs the host about 10 us, and more where it waits for it; the bytes do not matter.

How to fix
    Make tensors on the GPU: `torch.zeros(..., device=device)`. Put small ones together and move them at once; keep
    constants there.

Ignore when
    the GPU has enough queued meanwhile.

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
    between = [tiny_copy for tiny_copy in tiny_copies if tiny_copy.direction in (Direction.H2D, Direction.D2H)]
    waited = [one for one in between if one.host_memory is not HostMemory.PINNED or len(one.sync_ids)]
    mine = sorted((one for one in waited if one.asked_by not in READS.split()), key=lambda one: -one.host_ns)
    count, idle = sum(one.copies for one in mine), sum(one.host_idle_ns for one in mine)
    if count < COPIES and idle < IDLE_SHARE * steps.mean_ns:
        yield Clean(f"{count} tiny copies a step")
        return
    yield Finding(
        evidence=(
            Evidence(
                f"{count} copies of under 64 KiB a step; the GPU is idle {ms(idle)} while the host is at them.",
                idle,
                "ns",
            ),
            Evidence(
                f"The longest are `{mine[0].asked_by or 'a copy'}`, {mine[0].total_copies / steps.count:.3g} times a"
                f" step: {ms(mine[0].host_ns)} of host time.",
                mine[0].host_ns,
                "ns",
            ),
            *(
                Evidence(f"`{one.made_by}` makes {one.total_calls / steps.count:.3g} tensors a step to be copied.")
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
                "Make small tensors on the GPU, and move those that cannot be made there in one piece.",
                after="mask = torch.zeros(n, device=device)",
                effort=2,
                link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
            ),
        ),
        confidence=Confidence(Level.MEDIUM, "the copies are recorded; which of them can go is not"),
        site=mine[0].site,
        host_bound=True,
    )


EXAMPLES = [
    Fires(
        """
        4 steps of 20
        cpu  aten::to 0-0.09 x100 every 0.1 | sync 0.04-0.08 x100 every 0.1 | aten::mm 11-12 | sync 13-19.01
        gpu  h2d 0.03-0.035 @0.01-0.03 pageable 64B x100 every 0.1 | sgemm 11.1-19 @11.05
        """
    ),
    Silent(
        """
        4 steps of 20
        cpu  aten::to 0-0.09 | aten::mm 11-12 | sync 13-19.01
        gpu  h2d 0.03-0.035 @0.01-0.03 pageable 64B | sgemm 11.1-19 @11.05
        """
    ),
]
