"""FSDP reduces gradients after every micro-batch.

Gradients are accumulated over several backward passes before the optimizer steps, and FSDP reduces and scatters them
after each of these passes, though only the sum of all is used.

Why it costs
    Each reduction carries all gradients. All but the last before the optimizer's step could be left out. Where
    parameters stay gathered after the forward pass, they could stay so until the last micro-batch as well.

How to fix
    FSDP2: `model.set_requires_gradient_sync(last)` before each forward pass. Where parameters stay gathered, also
    `model.set_reshard_after_backward(last)`. FSDP1: run all micro-batches but the last under `model.no_sync()`.

Ignore when
    memory is scarce: gradients that are not scattered take as much as all parameters, on every rank.

Sources
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    https://docs.pytorch.org/docs/stable/fsdp.html
"""

from diagnose.facts.communication.shard_rounds import ScatteredRounds
from diagnose.facts.device.head_room import HeadRoom
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step (our choice)
LINK = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
SYNC_LAST = Fix(
    "Reduce gradients in the last backward pass only (FSDP1: `model.no_sync()`).",
    safety=Safety.ROUNDING,
    before="loss.backward()",
    after="model.set_requires_gradient_sync(last)\nmodel(part).loss.backward()",
    link=LINK,
)
KEEP = Fix(
    "Reduce gradients in the last backward pass only, and keep parameters gathered until then.",
    safety=Safety.ROUNDING,
    before="loss.backward()",
    after="model.set_requires_gradient_sync(last)\nmodel.set_reshard_after_backward(last)\nmodel(part).loss.backward()",
    link=LINK,
)


@rule("CO18")
def fsdp_missing_no_sync(
    scattered_rounds: ScatteredRounds, steps: Steps, head_room: HeadRoom | None = None
) -> Verdicts:
    found, needed = scattered_rounds, scattered_rounds.gradient_bytes
    taken_ns = found.early.ns + found.again.ns
    if not found.rounds:
        yield NotApplicable("FSDP reduces no gradients here")
    elif found.rounds < 2 or not found.alike:
        yield Clean(
            f"{found.rounds} reductions of gradients for each step of the optimizer, not of the same ones again"
        )
    elif taken_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"all reductions but the last before the optimizer's step take {ms(taken_ns)} a step")
    elif suffices(head_room, needed) is False:
        yield Clean(f"gradients that are not scattered take {bytes_(needed or 0)}: more memory than is free")
    else:
        gathers = f" Gathers for them take {ms(found.again.ns)} more." if found.again.calls else ""
        yield Finding(
            evidence=(
                Evidence(
                    f"FSDP reduces gradients {found.rounds} times for each step of the optimizer; all but the last take"
                    f" {ms(found.early.ns)} a step.{gathers}",
                    taken_ns,
                    "ns",
                ),
            ),
            edits=(*without(found.early), *without(found.again)),
            fixes=(KEEP if found.again.calls else SYNC_LAST,),
            confidence=memory_confidence(head_room, needed),
        )


EXAMPLES = [
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
    Silent(  # one reduction for two passes
        """
        4 steps of 100
        cpu     "FSDP::pre_forward (layers.0)" 0-1 | "FSDP::post_backward_accumulate (layers.0)" 2-2.3
        cpu     "FSDP::pre_forward (layers.0)" 3-4 | "FSDP::post_backward_reduce (layers.0)" 5-5.3
        cpu     c10d::_reduce_scatter_base_ 5.1-5.2 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 1.1-20 @1.05 | sgemm 20.01-69 @4.05
        gpu 20  reduce_scatter 69.01-99 @5.15 operation=_reduce_scatter_base
        """
    ),
    Silent(  # the gradients take 80 GB more, and 10 are free
        """
        4 steps of 100
        memory 60 of 70 GB
        cpu     "FSDP::pre_forward (layers.0)" 0-1 | "FSDP::post_backward_reduce (layers.0)" 2-2.3
        cpu     c10d::_reduce_scatter_base_ 2.1-2.2
        cpu     "FSDP::pre_forward (layers.0)" 3-4 | "FSDP::post_backward_reduce (layers.0)" 5-5.3
        cpu     c10d::_reduce_scatter_base_ 5.1-5.2 | optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 1.1-20 @1.05 | sgemm 50.01-69 @4.05
        gpu 20  reduce_scatter 20.01-50 @2.15 operation=_reduce_scatter_base in_elements=20000000000 dtype=Float
        gpu 20  reduce_scatter 69.01-99 @5.15 operation=_reduce_scatter_base in_elements=20000000000 dtype=Float
        """
    ),
    CannotTell("gpu 20  reduce_scatter 20-50", because="framework ops"),
]
