"""The backward pass propagates gradients that are all zero.

What came through `sign()`, `round()` or a comparison has a slope of zero: autograd makes zeros there, and takes them
back through all that led to it.

Ignore when
    an optimizer is to move weights whose gradients are zero (momentum, weight decay): without gradients it leaves them
    alone.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "LB11",
    Cause.ZERO_GRADIENT,
    says="{count} nodes of the backward pass take nothing but zeros, which autograd makes for an op without a slope",
    fixes=(
        Fix(
            "Detach what goes into the op that has no slope, or compute it under `torch.no_grad()`.",
            before="moved = images + pace * slopes.sign()",
            after="moved = images + pace * slopes.detach().sign()",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html",
        ),
    ),
    left=Between(0.1, 0.0, 0.0),  # Nothing goes back there any more (our choice).
    confidence=Confidence(Level.HIGH, "the zeros were followed from where autograd made them"),
)

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
]
