"""FSDP's units are too small, or gathered too late.

A unit is what `fully_shard` or FullyShardedDataParallel wraps. One collective gathers its parameters. A collective
takes some time to start, whatever it carries. It costs nothing only where compute runs beside it.

Why it costs
    Collectives of small units take mostly the time to start. One for their whole block takes hardly longer.
    A gather that starts when its unit is to compute is waited for. So is the gather of a model that is one unit.

How to fix
    Wrap each block of the model, and the model around them. Where the host waits for the device in each block, ask for
    the next block's gather explicitly (`set_modules_to_forward_prefetch`).

Ignore when
    units belong to different process groups, as experts do.

Sources
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from diagnose.facts.communication.shard_units import FineUnits, LateGathers
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step (our choice)
LATENCY_SHARE = 0.5  # of what a gather of the usual size takes (our choice)
LINK = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
LEFT_OF_ONE = Between(0.5, 0.2, 0.05)  # of what is exposed, with 2, 5 or 20 blocks of which one cannot be hidden
LEFT_OF_FINE = Between(0.9, 0.5, 0.1)  # the same with units as large as blocks (our choice)
LEFT_OF_LATE = Between(0.5, 0.1, 0.0)  # the same with explicit prefetching (our choice)
WRAP = Fix(
    "Wrap each block, not parts of it (FSDP1: `transformer_auto_wrap_policy`).",
    before="for part in block.children():\n    fully_shard(part)",
    after="for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)",
    safety=Safety.SAME_NUMBERS,
    link=LINK,
)
SPLIT = Fix(
    "Wrap each block, so that one is gathered while another computes.",
    before="fully_shard(model)",
    after="for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)",
    safety=Safety.SAME_NUMBERS,
    link=LINK,
)
PREFETCH = Fix(
    "Gather the next block's parameters while this one computes (FSDP1: `forward_prefetch=True`).",
    after="for block, following in zip(blocks, blocks[1:]):\n    block.set_modules_to_forward_prefetch([following])",
    safety=Safety.SAME_NUMBERS,
    link=LINK,
)
FITTED = Confidence(Level.MEDIUM, "what larger collectives take is fitted to those that were recorded")
COMPARED = Confidence(Level.MEDIUM, "how much compute would hide is estimated")
ALONE = Confidence(Level.LOW, "one rank alone does not tell transfer from waiting for other ranks: record all")


@rule("CO09")
def fsdp_units(fine_units: FineUnits, late_gathers: LateGathers, steps: Steps) -> Verdicts:
    fine, late = fine_units, late_gathers
    latency_bound = fine.units > fine.blocks and fine.latency_share >= LATENCY_SHARE
    if not fine.units:
        yield NotApplicable("FSDP gathers nothing here")
    elif latency_bound and fine.needless.ns >= WORTH_SHARE * steps.mean_ns:
        yield _too_small(fine, steps)
    elif late.exposed_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"{ms(late.exposed_ns)} a step of exposed gathers and reductions could be hidden by compute")
    else:
        yield _too_late(fine, late, steps)


def _too_small(fine: FineUnits, steps: Steps) -> Finding:
    size = "" if fine.bytes is None else f" of {bytes_(fine.bytes)}"
    return Finding(
        title="FSDP wraps parts of blocks: its collectives are bound by latency",
        evidence=(
            Evidence(
                f"Of FSDP's collectives {fine.needless.calls} a step would not be needed if each block were one unit."
                f" They take {ms(fine.needless.ns)}: {percent(fine.needless.ns / steps.mean_ns)} of the step.",
                fine.needless.ns,
                "ns",
            ),
            Evidence(
                f"{fine.units} units{size} belong to {fine.blocks} blocks. Starting a gather is"
                f" {percent(fine.latency_share)} of its time.",
                fine.units,
            ),
        ),
        edits=merged(fine),
        fixes=(WRAP,),
        confidence=FITTED if fine.needless.compared else ALONE,
    )


def _too_late(fine: FineUnits, late: LateGathers, steps: Steps) -> Finding:
    one, parts = fine.units == 1, fine.units > fine.blocks
    left, fix = (LEFT_OF_ONE, SPLIT) if one else (LEFT_OF_FINE, WRAP) if parts else (LEFT_OF_LATE, PREFETCH)
    why = (
        "The whole model is one unit: nothing is computed before it is gathered."
        if one
        else f"{fine.units} units belong to {fine.blocks} blocks, and some have little compute beside them."
        if parts
        else "They begin when compute that could hide them is over."
    )
    return Finding(
        title="FSDP shards the model as one unit" if one else "FSDP's collectives begin too late to be hidden",
        evidence=(
            Evidence(
                f"FSDP's collectives are exposed for {ms(late.exposed_ns)} a step that compute could hide:"
                f" {percent(late.exposed_ns / steps.mean_ns)} of the step.",
                late.exposed_ns,
                "ns",
            ),
            Evidence(why, fine.units),
        ),
        edits=(Shorten(late.ids, left.of_share(late.share)),),
        fixes=(fix,),
        confidence=COMPARED if late.compared else ALONE,
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    Fires(  # 4 gathers of 10 ms for 4 kB each: one of 16 kB takes as long
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0.a)" 0-1 | "FSDP::all_gather (h.0.a)" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6
        cpu     "FSDP::pre_forward (h.0.b)" 2-3 | "FSDP::all_gather (h.0.b)" 2.2-2.8 | c10d::_allgather_base_ 2.4-2.6
        cpu     "FSDP::pre_forward (h.0.c)" 4-5 | "FSDP::all_gather (h.0.c)" 4.2-4.8 | c10d::_allgather_base_ 4.4-4.6
        cpu     "FSDP::pre_forward (h.0.d)" 6-7 | "FSDP::all_gather (h.0.d)" 6.2-6.8 | c10d::_allgather_base_ 6.4-6.6
        cpu     wait 1.1-1.2 | wait 3.1-3.2 | wait 5.1-5.2 | wait 7.1-7.2 | "FSDP::pre_backward (h.0)" 7.5-7.6
        cpu     optimizer 8-9 | device_sync 9-99.9
        gpu     sgemm 11-21 @1.5 | sgemm 31-41 @3.5 | sgemm 51-61 @5.5 | sgemm 71-99 @7.5
        gpu 20  allgather 1-11 @0.5 operation=_allgather_base out_elements=2000 in_elements=1000 dtype=BFloat16
        gpu 20  allgather 21-31 @2.5 operation=_allgather_base out_elements=2000 in_elements=1000 dtype=BFloat16
        gpu 20  allgather 41-51 @4.5 operation=_allgather_base out_elements=2000 in_elements=1000 dtype=BFloat16
        gpu 20  allgather 61-71 @6.5 operation=_allgather_base out_elements=2000 in_elements=1000 dtype=BFloat16
        """,
        saving_ms=(30, 30),
    ),
    Fires(  # one unit: 60 ms could hide behind 38 of compute, but for the first gather and the last reduction
        """
        4 steps of 100
        cpu     "FSDP::pre_forward" 0-1 | "FSDP::all_gather" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6 | wait 1.1-1.2
        cpu     "FSDP::post_backward_reduce" 2-3 | c10d::_reduce_scatter_base_ 2.4-2.6 | optimizer 4-5
        cpu     device_sync 6-99.9
        gpu     sgemm 31-69 @1.5
        gpu 20  allgather 1-31 @0.5 operation=_allgather_base
        gpu 20  reduce_scatter 69-99 @2.5 operation=_reduce_scatter_base
        """,
        saving_ms=(30, 57),
    ),
    Fires(  # the second gather is asked for once the first block has computed; its block's compute, 8.5 before its end
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-1 | "FSDP::all_gather (h.0)" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6
        cpu     wait 1.1-1.2 | sync 2-41.5
        cpu     "FSDP::pre_forward (h.1)" 41.6-43 | "FSDP::all_gather (h.1)" 41.7-42.8 | c10d::_allgather_base_ 41.8-42
        cpu     wait 43.1-43.2 | "FSDP::pre_backward (h.1)" 44-44.1 | optimizer 45-46 | device_sync 47-99.9
        gpu     sgemm 11-41 @1.5 | sgemm 52-99 @43.5
        gpu 20  allgather 1-11 @0.5 operation=_allgather_base | allgather 42-52 @41.9 operation=_allgather_base
        """,
        saving_ms=(5, 8.5),
    ),
    Silent(  # hidden but for the first
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-1 | "FSDP::all_gather (h.0)" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6
        cpu     "FSDP::pre_forward (h.1)" 2-3 | "FSDP::all_gather (h.1)" 2.2-2.8 | c10d::_allgather_base_ 2.4-2.6
        cpu     wait 1.1-1.2 | wait 3.1-3.2 | "FSDP::pre_backward (h.0)" 7.5-7.6 | optimizer 8-9 | device_sync 9-99.9
        gpu     sgemm 11-50 @1.5 | sgemm 50-99 @3.5
        gpu 20  allgather 1-11 @0.5 operation=_allgather_base | allgather 11.01-21 @2.5 operation=_allgather_base
        """
    ),
    Silent(  # gathers follow each other, and take longer than all compute: none could begin earlier
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-1 | "FSDP::all_gather (h.0)" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6
        cpu     "FSDP::pre_forward (h.1)" 2-3 | "FSDP::all_gather (h.1)" 2.2-2.8 | c10d::_allgather_base_ 2.4-2.6
        cpu     wait 1.1-1.2 | wait 3.1-3.2 | "FSDP::pre_backward (h.0)" 7.5-7.6 | optimizer 8-9 | device_sync 9-99.9
        gpu     sgemm 41-51 @1.5 | sgemm 81-99 @3.5
        gpu 20  allgather 1-41 @0.5 operation=_allgather_base | allgather 41-81 @2.5 operation=_allgather_base
        """
    ),
    CannotTell("gpu 20  allgather 20-50", because="framework ops"),
]
