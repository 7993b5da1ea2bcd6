"""FSDP gathers parameters again for the backward pass.

FSDP frees the gathered parameters of a unit after its forward pass, and gathers them once more for its backward pass.

Why it costs
    Each gather carries all parameters of its unit. What compute does not hide adds to every step.

How to fix
    If memory allows, keep parameters after the forward pass: `fully_shard(block, reshard_after_forward=False)`; FSDP1:
    `ShardingStrategy.SHARD_GRAD_OP`. Or shard within a machine only (HSDP), where links are faster.

Ignore when
    memory is scarce: that is what sharding is for.

Sources
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    https://docs.pytorch.org/docs/stable/fsdp.html
"""

from diagnose.facts.communication.shard_rounds import Regathers
from diagnose.facts.device.head_room import HeadRoom
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step (our choice)
KEEP = Fix.of(fixes.FsdpArgument(), "Keep parameters after the forward pass (FSDP1: `ShardingStrategy.SHARD_GRAD_OP`).")
WITHIN = Fix(
    "On several machines, shard within each, and replicate over them (HSDP).",
    after='mesh = init_device_mesh("cuda", (nodes, 8), mesh_dim_names=("replicate", "shard"))\n'
    "fully_shard(block, mesh=mesh)",
    safety=Safety.ROUNDING,
    effort=2,
    link="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)


@rule("CO10")
def regathered_parameters(regathers: Regathers, steps: Steps, head_room: HeadRoom | None = None) -> Verdicts:
    found, gathers = regathers, regathers.traffic
    if not gathers.calls:
        yield NotApplicable("FSDP gathers nothing twice here")
    elif gathers.exposed_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"gathers for the backward pass are exposed for {ms(gathers.exposed_ns)} a step")
    elif suffices(head_room, found.bytes) is False:
        yield Clean(f"parameters of {bytes_(found.bytes or 0)} are gathered again: more memory than is free")
    else:
        size = "" if found.bytes is None else f" ({bytes_(found.bytes)} together)"
        yield Finding(
            evidence=(
                Evidence(
                    f"Gathers for the backward pass take {ms(gathers.ns)} a step, {ms(gathers.exposed_ns)} of it while"
                    f" nothing is computed: {percent(gathers.exposed_ns / steps.mean_ns)} of the step.",
                    gathers.exposed_ns,
                    "ns",
                ),
                Evidence(
                    f"{found.units} of {found.forward_units} units{size} are gathered for the forward pass, and again"
                    " for the backward pass.",
                    found.units,
                ),
            ),
            edits=without(gathers),
            fixes=(KEEP, WITHIN),
            confidence=memory_confidence(head_room, found.bytes),
        )


EXAMPLES = [
    Fires(  # the second gather of 30 ms is not needed
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-2 | "FSDP::all_gather (h.0)" 0.5-1 | c10d::_allgather_base_ 0.6-0.8
        cpu     wait 2-2.1 | "FSDP::pre_backward (h.0)" 3-5 | "FSDP::all_gather (h.0)" 3.5-4
        cpu     c10d::_allgather_base_ 3.6-3.8 | wait 5-5.1 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 20.01-40 @2.5 | sgemm 70.01-99 @5.5
        gpu 20  allgather 1-20 @0.7 operation=_allgather_base
        gpu 20  allgather 40.01-70 @3.7 operation=_allgather_base
        """,
        saving_ms=(30, 30),
    ),
    Fires(  # on the host, of one rank alone: of 20 ms with waiting 8 go at least; the rest of the step gets faster, too
        """
        4 steps of 100
        2 threads, 2 cores
        rank 0 of 2
        cpu     "FSDP::pre_forward (h.0)" 0-12 | "FSDP::all_gather (h.0)" 0.5-11 | c10d::_allgather_base_ 0.6-0.8
        cpu     aten::mm 12-40 | "FSDP::pre_backward (h.0)" 41-62 | "FSDP::all_gather (h.0)" 41.5-61.5
        cpu     c10d::_allgather_base_ 41.6-41.8 | aten::mm 63-98 | optimizer 98-99
        cpu threads  gloo:all_gather 1-10.9 | gloo:all_gather 42-61.4
        """,
        saving_ms=(8, 30.1),
    ),
    Silent(  # there is no room for 80 GB more
        """
        4 steps of 100
        memory 60 of 70 GB
        cpu     "FSDP::pre_forward (h.0)" 0-2 | "FSDP::all_gather (h.0)" 0.5-1 | c10d::_allgather_base_ 0.6-0.8
        cpu     wait 2-2.1 | "FSDP::pre_backward (h.0)" 3-5 | "FSDP::all_gather (h.0)" 3.5-4
        cpu     c10d::_allgather_base_ 3.6-3.8 | wait 5-5.1 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 20.01-40 @2.5 | sgemm 70.01-99 @5.5
        gpu 20  allgather 1-20 @0.7 operation=_allgather_base out_elements=40000000000 dtype=BFloat16
        gpu 20  allgather 40.01-70 @3.7 operation=_allgather_base out_elements=40000000000 dtype=BFloat16
        """
    ),
    Silent(  # compute hides it
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-2 | "FSDP::all_gather (h.0)" 0.5-1 | c10d::_allgather_base_ 0.6-0.8
        cpu     "FSDP::pre_backward (h.0)" 3-5 | "FSDP::all_gather (h.0)" 3.5-4
        cpu     c10d::_allgather_base_ 3.6-3.8 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 20.01-99 @2.5
        gpu 20  allgather 1-20 @0.7 operation=_allgather_base
        gpu 20  allgather 40.01-70 @3.7 operation=_allgather_base
        """
    ),
    Silent(  # parameters stay gathered
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-2 | "FSDP::all_gather (h.0)" 0.5-1 | c10d::_allgather_base_ 0.6-0.8
        cpu     "FSDP::pre_backward (h.0)" 3-5 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 20.01-99 @2.5
        gpu 20  allgather 1-20 @0.7 operation=_allgather_base
        """
    ),
    CannotTell("gpu 20  allgather 20-50", because="framework ops"),
]
