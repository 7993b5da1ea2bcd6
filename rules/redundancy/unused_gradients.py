"""Gradients are computed that no optimizer uses.

A backward pass goes on to every weight that asks for a gradient. Weights that only the optimizer was not given still
ask, as do those of a net whose output another one is trained on; their gradients are kept, or cleared unused.

Ignore when
    the script itself uses these gradients: to log them, in a norm that limits the others, or for an attack.
"""

from diagnose.rulekit.vocabulary import *

FREEZE = Fix(
    "Ask for gradients of what is trained only.",
    after="model.requires_grad_(False)\nmodel.head.requires_grad_(True)\noptimizer = AdamW(model.head.parameters())",
    link="https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad",
)
CUT = Fix(
    "Cut the graph before the net that this pass does not train.",
    after="loss = critic(generator(noise).detach()).mean()",
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html",
)
DATA = Fix("Ask for no gradients of data.", after="features = torch.tensor(table)")
RULE = wasted(
    "LB08",
    Cause.UNUSED_GRADIENT,
    says={
        "": "Backward passes run {count} nodes for {detail} that no optimizer uses",
        "single": "Backward passes run {count} nodes for {detail} that nothing reads",
        "cleared": "Backward passes run {count} nodes for {detail} that are cleared before an optimizer uses them",
    },
    fixes={"": (FREEZE, CUT), "single": (DATA,), "cleared": (CUT, FREEZE)},
    confidence={
        "": Confidence(Level.MEDIUM, "an optimizer that makes no step in this recording might use them"),
        "cleared": Confidence(Level.HIGH, "which gradients the optimizers read, and when they clear them, is recorded"),
    },
    often=0.5,  # of the steps (our choice)
)

EXAMPLES = [
    Fires(  # only the head, of 4 x 8, is trained; the backward pass through the trunk takes 40 of 100 ms
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-20 | aten::ones_like 21-22 | "Optimizer.step#SGD.step" 90-99
        cpu  aten::add_ 91-98 shapes=[[4,8],[4,8],[]]
        cpu  "autograd::engine::evaluate_function: MmBackward0" 23-30 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 31-32
        cpu  torch::autograd::AccumulateGrad 31-32 shapes=[[4,8]]
        cpu  "autograd::engine::evaluate_function: MmBackward0" 33-63 sequence=4 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 64-69 x2 every 5
        cpu  torch::autograd::AccumulateGrad 64-69 shapes=[[64,8]] x2 every 5
        """
    ),
    Silent(  # all is trained
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-20 | aten::ones_like 21-22 | "Optimizer.step#SGD.step" 90-99
        cpu  aten::add_ 91-94 shapes=[[4,8],[4,8],[]] | aten::add_ 95-98 shapes=[[64,8],[64,8],[]]
        cpu  "autograd::engine::evaluate_function: MmBackward0" 23-30 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 31-32 | aten::mm 24-29
        cpu  torch::autograd::AccumulateGrad 31-32 shapes=[[64,8]]
        """
    ),
]
