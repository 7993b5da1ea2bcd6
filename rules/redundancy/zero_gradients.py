"""Gradients go back that are all zero.

What came through `sign()`, `round()` or a comparison has a slope of zero: autograd makes zeros there, and takes them
back through all that led to it.

Why it costs
    The backward pass through what led there is computed, and adds zeros to gradients. What it needs is kept until then.

How to fix
    Call `detach()` on what goes into such an op, or compute it under `torch.no_grad()`.

Ignore when
    an optimizer is to move weights whose gradients are zero (momentum, weight decay): without gradients it leaves them
    alone.

Sources
    https://docs.pytorch.org/docs/stable/notes/autograd.html
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
"""

from diagnose.facts.autograd.backward import VainNodes
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such nodes (our choice)
LEFT = Between(0.1, 0.0, 0.0)  # of the time: nothing goes back there any more (our choice)
DETACH = Fix(
    "Detach what goes into the op that has no slope.", before="moved = images + pace * slopes.sign()",
    after="moved = images + pace * slopes.detach().sign()", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html",
)  # fmt: skip


@rule("LB11")
def back_for_nothing(zero_gradients: VainNodes, steps: Steps) -> Verdicts:
    vain = zero_gradients
    longest = vain.work.longest_ns
    if longest < WORTH_SHARE * steps.mean_ns or vain.steps_seen < OFTEN * steps.count:
        yield Clean(f"{percent(longest / max(steps.mean_ns, 1))} of the step takes gradients back that are all zero")
        return
    on_device = f", {ms(vain.work.device_ns)} of GPU time" * (vain.work.device_ns > 0)
    yield Finding(
        evidence=(
            Evidence(
                f"{vain.nodes} nodes of backward passes took nothing but zeros in the step that was looked at, which"
                f" autograd had made for an op without a slope: {ms(vain.work.host_ns)} a step{on_device}.",
                longest, "ns",
            ),
        ),
        edits=(Shorten(vain.work.ids, LEFT), Shorten(vain.work.work_ids, LEFT)),
        fixes=(DETACH,),
        confidence=Confidence(Level.HIGH, "the zeros were followed from where autograd made them"),
        site=vain.site,
    )  # fmt: skip


EXAMPLES = [
    Fires(  # the backward pass of the layer
        """
        1 step of 100
        2 threads, 4 cores
        values aten::mm | aten::sign takes 0 | aten::zeros_like back | aten::mm takes 2 back idle 100
        cpu  aten::mm 0-20 sequence=5 | aten::sign 20-21 sequence=6
        cpu  "autograd::engine::evaluate_function: SignBackward0" 30-31 sequence=6 "Fwd thread id"=1
        cpu  aten::zeros_like 30-31
        cpu  "autograd::engine::evaluate_function: MmBackward0" 40-80 sequence=5 "Fwd thread id"=1
        cpu  aten::mm 41-79
        """,
        saving_ms=(36, 61.6),
    ),
    Silent(  # it is zero by what was computed: a hinge that is not reached
        """
        1 step of 100
        2 threads, 4 cores
        values aten::mm | aten::relu takes 0 | aten::threshold_backward takes 1 back | aten::mm takes 2 back idle 100
        cpu  aten::mm 0-20 sequence=5 | aten::relu 20-21 sequence=6
        cpu  "autograd::engine::evaluate_function: ReluBackward0" 30-31 sequence=6 "Fwd thread id"=1
        cpu  aten::threshold_backward 30-31
        cpu  "autograd::engine::evaluate_function: MmBackward0" 40-80 sequence=5 "Fwd thread id"=1
        cpu  aten::mm 41-79
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
