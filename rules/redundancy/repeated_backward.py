"""backward() runs through the same graph more than once.

`backward(retain_graph=True)` for each of several losses goes back through what they have in common once for each, and
adds up the gradients. A gradient of their sum is the sum of their gradients, and takes one pass.

Ignore when
    gradients of single losses are needed, as to project or weight them.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "LB09",
    Cause.REPEATED_BACKWARD,
    says="{count} nodes run again that an earlier backward pass had run, and add to the same gradients",
    fixes=(
        Fix(
            "Add up the losses, and call `backward()` once.",
            before="for loss in losses: loss.backward(retain_graph=True)",
            after="sum(losses).backward()",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html",
        ),
    ),
    left=Between(0.5, 0.1, 0.0),  # In a planted case 0.0 to 0.4 stayed, as gradients are still added up.
    confidence=Confidence(Level.MEDIUM, "whether the script takes gradients of single losses is not recorded"),
    basis=Basis.RULE_OF_THUMB,
    often=0.5,  # of the steps (our choice)
)

EXAMPLES = [
    Fires(  # two losses; the backward pass through the common trunk takes 30 of 100 ms each time
        """
        1 step of 100
        2 threads, 4 cores
        cpu  aten::ones_like 1-2 | aten::ones_like 50-51 | "Optimizer.step#SGD.step" 90-99
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-35 x2 every 47 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 35-36 x2 every 47
        """
    ),
    Silent(  # the same, of two graphs
        """
        1 step of 100
        2 threads, 4 cores
        cpu  aten::ones_like 1-2 | aten::ones_like 50-51 | "Optimizer.step#SGD.step" 90-99
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-35 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 52-82 sequence=6 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 35-36 x2 every 47
        """
    ),
]
