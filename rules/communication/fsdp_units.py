"""FSDP communicates more often or later than it has to.

A unit is what `fully_shard` or FullyShardedDataParallel wraps; one collective gathers its parameters. By default, a
unit is gathered for the forward pass and again for the backward pass. Every backward pass reduces gradients.

Why it costs
    Each gather carries all parameters, each reduction all gradients. Collectives of small units are mostly latency.
    Compute waits for a gather that starts late, and for the gather of a model that is one unit.
How to fix
    Wrap each block, and the model around them. Prefetch explicitly where the CPU waits for the GPU in each block. If
    memory allows, set `reshard_after_forward=False`, or shard within a machine only (HSDP). With several micro-batches,
    reduce only in the last: `model.set_requires_gradient_sync(last)`; FSDP1: `model.no_sync()`.
Ignore when
    units belong to different process groups, as experts do. Or memory is scarce: unsharded gradients take as much as
    all parameters, on every rank.
Sources
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    https://docs.pytorch.org/docs/stable/fsdp.html
"""

from diagnose.facts.communication.sharding import Sharding, ShardTraffic
from diagnose.facts.device.memory import HeadRoom
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step (our choice)
LATENCY_SHARE = 0.5  # of what a gather of the usual size takes (our choice)
LINK = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
LEFT_OF_ONE = Between(0.5, 0.2, 0.05)  # of what is exposed, with 2, 5 or 20 blocks of which one cannot be hidden
LEFT_OF_FINE = Between(0.9, 0.5, 0.1)  # the same with units as large as blocks (our choice)
LEFT_OF_LATE = Between(0.5, 0.1, 0.0)  # the same with explicit prefetching (our choice)
ALONE_LEFT = Between(0.6, 0.3, 0.0)  # of the host's time where waiting is unknown: ranks that differ meet later
WRAP = Fix(
    "Wrap each block, not parts of it (FSDP1: `transformer_auto_wrap_policy`).",
    after="for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)",
    link=LINK,
)
SPLIT = Fix(
    "Wrap each block, so that gathers overlap with compute.",
    before="fully_shard(model)",
    after="for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)",
    link=LINK,
)
PREFETCH = Fix(
    "Prefetch the next block's parameters during compute (FSDP1: `forward_prefetch=True`).",
    after="for block, following in zip(blocks, blocks[1:]):\n    block.set_modules_to_forward_prefetch([following])",
    link=LINK,
)
KEEP = Fix.of(fixes.FsdpArgument(), "Keep parameters after the forward pass (FSDP1: `ShardingStrategy.SHARD_GRAD_OP`).")
WITHIN = Fix(
    "On several machines, shard within each machine, and replicate across machines (HSDP).",
    after='mesh = init_device_mesh("cuda", (nodes, 8), mesh_dim_names=("replicate", "shard"))\n'
    "fully_shard(block, mesh=mesh)",
    safety=Safety.ROUNDING,
    effort=2,
    link=LINK,
)
SYNC_LAST = Fix(
    "Reduce gradients in the last backward pass only (FSDP1: `model.no_sync()`).",
    safety=Safety.ROUNDING,
    before="loss.backward()",
    after="model.set_requires_gradient_sync(last)\nmodel(part).loss.backward()",
    link=LINK,
)
GATHER_ONCE = Fix(
    "Reduce gradients in the last backward pass only, and keep parameters gathered until then.",
    safety=Safety.ROUNDING,
    before="loss.backward()",
    after="model.set_requires_gradient_sync(last)\nmodel.set_reshard_after_backward(last)\nmodel(part).loss.backward()",
    link=LINK,
)
FITTED = Confidence(Level.MEDIUM, "the time of larger collectives is fitted to the recorded ones")
COMPARED = Confidence(Level.MEDIUM, "how much compute would hide is estimated")
ALONE = Confidence(Level.LOW, "one rank cannot separate transfer from waiting: record all ranks")


@rule("CO09")
def fsdp_units(sharding: Sharding, steps: Steps, head_room: HeadRoom | None = None) -> Verdicts:
    least_ns = WORTH_SHARE * steps.mean_ns
    if not sharding.units and not sharding.rounds:
        yield NotApplicable("FSDP gathers and reduces nothing")
        return
    yield _reduced_each_time(sharding, least_ns, head_room)
    yield _gathered_again(sharding, steps, head_room)
    fine = sharding.units > sharding.blocks and sharding.latency_share >= LATENCY_SHARE
    if fine and sharding.needless.ns >= least_ns:
        yield _too_small(sharding, steps)
    elif sharding.late_ns >= least_ns and sharding.units:
        yield _too_late(sharding, steps)
    else:
        yield Clean(f"compute could hide {ms(sharding.late_ns)}/step of exposed gathers and reductions")


def _reduced_each_time(found: Sharding, least_ns: float, room: HeadRoom | None) -> Finding | Clean:
    taken_ns, needed = found.early.ns + found.kept.ns, found.gradient_bytes
    if found.rounds < 2 or not found.alike:
        return Clean(f"{found.rounds} gradient reductions per optimizer step, none repeated")
    if taken_ns < least_ns:
        return Clean(f"all gradient reductions but the last take {ms(taken_ns)}/step")
    if _is_too_much(room, needed):
        return Clean(f"unsharded gradients take {bytes_(needed or 0)}, more memory than is free")
    gathers = f" Repeated gathers take {ms(found.kept.ns)} more." if found.kept.calls else ""
    text = f"{found.rounds} gradient reductions per optimizer step: all but the last take {ms(found.early.ns)}/step."
    return Finding(
        title="FSDP reduces gradients after every micro-batch",
        evidence=(Evidence(text + gathers, taken_ns, "ns"),),
        edits=(*_without(found, found.early), *_without(found, found.kept)),
        fixes=(GATHER_ONCE if found.kept.calls else SYNC_LAST,),
        confidence=_in_memory(room, needed),
    )


def _gathered_again(found: Sharding, steps: Steps, room: HeadRoom | None) -> Finding | Clean:
    again, needed = found.again, found.bytes_again
    if again.exposed_ns < WORTH_SHARE * steps.mean_ns:
        return Clean(f"gathers for the backward pass are exposed for {ms(again.exposed_ns)}/step")
    if _is_too_much(room, needed):
        return Clean(f"keeping the parameters gathered takes {bytes_(needed or 0)}, more memory than is free")
    size = "" if needed is None else f" ({bytes_(needed)} together)"
    return Finding(
        title="FSDP gathers parameters again for the backward pass",
        evidence=(
            Evidence(
                f"Gathers for the backward pass take {ms(again.ns)}/step, {ms(again.exposed_ns)} exposed"
                f" ({percent(again.exposed_ns / steps.mean_ns)} of the step).",
                again.exposed_ns,
                "ns",
            ),
            Evidence(
                f"{found.units_again} of {found.units} units{size} are gathered for both passes.", found.units_again
            ),
        ),
        edits=_without(found, again),
        fixes=(KEEP, WITHIN),
        confidence=_in_memory(room, needed),
    )


def _too_small(found: Sharding, steps: Steps) -> Finding:
    size, needless = "" if found.unit_bytes is None else f" of {bytes_(found.unit_bytes)}", found.needless
    left = ALONE_LEFT if needless.on_host and not found.compared else 0.0
    return Finding(
        title="FSDP wraps parts of blocks: collectives are latency-bound",
        evidence=(
            Evidence(
                f"{needless.calls} FSDP collectives per step are unnecessary with one unit per block:"
                f" {ms(needless.ns)} ({percent(needless.ns / steps.mean_ns)} of the step).",
                needless.ns,
                "ns",
            ),
            Evidence(
                f"{found.units} units{size} belong to {found.blocks} blocks. Latency is"
                f" {percent(found.latency_share)} of a gather's time.",
                found.units,
            ),
        ),
        edits=(
            *(Shorten(Times(track, times), left) for track, times in found.hooks),
            Remove(needless.ids),
            Shorten(Times(needless.track, needless.waits), ALONE_LEFT),
        ),
        fixes=(WRAP,),
        confidence=FITTED if found.compared else ALONE,
    )


def _too_late(found: Sharding, steps: Steps) -> Finding:
    one, parts = found.units == 1, found.units > found.blocks
    left, fix = (LEFT_OF_ONE, SPLIT) if one else (LEFT_OF_FINE, WRAP) if parts else (LEFT_OF_LATE, PREFETCH)
    why = (
        "The whole model is one unit: compute starts after its gather."
        if one
        else f"{found.units} units belong to {found.blocks} blocks, and some overlap with little compute."
        if parts
        else "The collectives start after the compute that could hide them."
    )
    return Finding(
        title="FSDP shards the model as one unit" if one else "FSDP's collectives start too late to overlap",
        evidence=(
            Evidence(
                f"Compute could hide {ms(found.late_ns)}/step of exposed FSDP collectives"
                f" ({percent(found.late_ns / steps.mean_ns)} of the step).",
                found.late_ns,
                "ns",
            ),
            Evidence(why, found.units),
        ),
        edits=(Shorten(found.late_ids, left.of_share(found.late_share)),),
        fixes=(fix,),
        confidence=COMPARED if found.compared else ALONE,
        basis=Basis.RULE_OF_THUMB,
    )


def _without(found: Sharding, some: ShardTraffic) -> tuple[Edit, ...]:
    if not some.on_host:
        return Remove(some.host_ids), Remove(some.ids)
    asking = Remove(some.host_ids) if found.compared else Shorten(some.host_ids, ALONE_LEFT)
    return asking, Remove(some.ids), Shorten(Times(some.track, some.waits), ALONE_LEFT)


def _is_too_much(room: HeadRoom | None, needed: int | None) -> bool:
    return room is not None and needed is not None and needed > room.bytes


def _in_memory(room: HeadRoom | None, needed: int | None) -> Confidence:
    if room is None or needed is None:
        return Confidence(Level.LOW, "free memory is not recorded: use diagnose profile --memory")
    if room.on_host:
        return Confidence(Level.MEDIUM, f"{bytes_(needed)} fit this machine easily; free memory is not recorded")
    return Confidence(Level.MEDIUM, f"{bytes_(needed)} are needed, {bytes_(room.bytes)} were never reserved")


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
    Fires(  # two reductions of 30 ms, which end before the step does
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (layers.0)" 0-1 | "FSDP::post_backward_reduce (layers.0)" 2-2.3
        cpu     c10d::_reduce_scatter_base_ 2.1-2.2
        cpu     "FSDP::pre_forward (layers.0)" 3-4 | "FSDP::post_backward_reduce (layers.0)" 5-5.3
        cpu     c10d::_reduce_scatter_base_ 5.1-5.2 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 1.1-20 @1.05 | sgemm 50.01-69 @4.05
        gpu 20  reduce_scatter 20.01-50 @2.15 operation=_reduce_scatter_base
        gpu 20  reduce_scatter 69.01-99 @5.15 operation=_reduce_scatter_base
        """,
        saving_ms=(30, 30),
    ),
    Fires(  # the second gather of h.1 is not needed: 30 ms
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-1 | "FSDP::all_gather (h.0)" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6
        cpu     "FSDP::pre_forward (h.1)" 1-2 | "FSDP::all_gather (h.1)" 1.2-1.8 | c10d::_allgather_base_ 1.4-1.6
        cpu     "FSDP::pre_backward (h.1)" 3-4 | "FSDP::all_gather (h.1)" 3.2-3.8 | c10d::_allgather_base_ 3.4-3.6
        cpu     wait 2-2.1 | wait 4-4.1 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 20.01-40 @2.5 | sgemm 70.01-99 @5.5
        gpu 20  allgather 1-10 @0.5 operation=_allgather_base | allgather 10-20 @1.5 operation=_allgather_base
        gpu 20  allgather 40.01-70 @3.5 operation=_allgather_base
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
        saving_ms=(8, 20),
    ),
    # gathers are hidden but for the first, and parameters stay gathered
    Silent("""
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-1 | "FSDP::all_gather (h.0)" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6
        cpu     "FSDP::pre_forward (h.1)" 2-3 | "FSDP::all_gather (h.1)" 2.2-2.8 | c10d::_allgather_base_ 2.4-2.6
        cpu     wait 1.1-1.2 | wait 3.1-3.2 | "FSDP::pre_backward (h.0)" 7.5-7.6 | optimizer 8-9 | device_sync 9-99.9
        gpu     sgemm 11-50 @1.5 | sgemm 50-99 @3.5
        gpu 20  allgather 1-11 @0.5 operation=_allgather_base | allgather 11.01-21 @2.5 operation=_allgather_base
    """),
    # gathers follow each other, and take longer than all compute: none could begin earlier
    Silent("""
        4 steps of 100
        cpu     "FSDP::pre_forward (h.0)" 0-1 | "FSDP::all_gather (h.0)" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6
        cpu     "FSDP::pre_forward (h.1)" 2-3 | "FSDP::all_gather (h.1)" 2.2-2.8 | c10d::_allgather_base_ 2.4-2.6
        cpu     wait 1.1-1.2 | wait 3.1-3.2 | "FSDP::pre_backward (h.0)" 7.5-7.6 | optimizer 8-9 | device_sync 9-99.9
        gpu     sgemm 41-51 @1.5 | sgemm 81-99 @3.5
        gpu 20  allgather 1-41 @0.5 operation=_allgather_base | allgather 41-81 @2.5 operation=_allgather_base
    """),
    # one reduction for two passes
    Silent("""
        4 steps of 100
        cpu     "FSDP::pre_forward (layers.0)" 0-1 | "FSDP::post_backward_accumulate (layers.0)" 2-2.3
        cpu     "FSDP::pre_forward (layers.0)" 3-4 | "FSDP::post_backward_reduce (layers.0)" 5-5.3
        cpu     c10d::_reduce_scatter_base_ 5.1-5.2 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 1.1-20 @1.05 | sgemm 20.01-69 @4.05
        gpu 20  reduce_scatter 69.01-99 @5.15 operation=_reduce_scatter_base
    """),
    # the gradients take 80 GB more, and 10 are free
    Silent("""
        4 steps of 100
        memory 60 of 70 GB
        cpu     "FSDP::pre_forward (layers.0)" 0-1 | "FSDP::post_backward_reduce (layers.0)" 2-2.3
        cpu     c10d::_reduce_scatter_base_ 2.1-2.2
        cpu     "FSDP::pre_forward (layers.0)" 3-4 | "FSDP::post_backward_reduce (layers.0)" 5-5.3
        cpu     c10d::_reduce_scatter_base_ 5.1-5.2 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 1.1-20 @1.05 | sgemm 50.01-69 @4.05
        gpu 20  reduce_scatter 20.01-50 @2.15 operation=_reduce_scatter_base in_elements=20000000000 dtype=Float
        gpu 20  reduce_scatter 69.01-99 @5.15 operation=_reduce_scatter_base in_elements=20000000000 dtype=Float
    """),
    # parameters take 80 GB more, and 10 are free; no compute lies before what is gathered in each pass
    Silent("""
        4 steps of 100
        memory 60 of 70 GB
        cpu     "FSDP::pre_forward (h.0)" 0-1 | "FSDP::all_gather (h.0)" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6
        cpu     "FSDP::pre_forward (h.1)" 1-2 | "FSDP::all_gather (h.1)" 1.2-1.8 | c10d::_allgather_base_ 1.4-1.6
        cpu     "FSDP::pre_backward (h.1)" 3-4 | "FSDP::all_gather (h.1)" 3.2-3.8 | c10d::_allgather_base_ 3.4-3.6
        cpu     wait 2-2.1 | wait 4-4.1 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 20.01-40 @2.5 | sgemm 70.01-99 @5.5
        gpu 20  allgather 1-10 @0.5 operation=_allgather_base out_elements=40000000000 dtype=BFloat16
        gpu 20  allgather 10-20 @1.5 operation=_allgather_base out_elements=40000000000 dtype=BFloat16
        gpu 20  allgather 40.01-70 @3.5 operation=_allgather_base out_elements=40000000000 dtype=BFloat16
    """),
    CannotTell("gpu 20  allgather 20-50", because="framework ops"),
]
