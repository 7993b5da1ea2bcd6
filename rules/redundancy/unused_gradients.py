"""Gradients are computed that no optimizer uses.

A backward pass reaches every weight with `requires_grad`. Weights left out of the optimizer still have it, as do those
of a network whose output trains another one. Their gradients are kept, or cleared unused.
Ignore when
    the script itself uses these gradients: for logging, in a gradient norm, or for an attack.
"""

from diagnose.rulekit.vocabulary import *

FREEZE = Fix(
    "Enable gradients only for trained weights.",
    after="model.requires_grad_(False)\nmodel.head.requires_grad_(True)\noptimizer = AdamW(model.head.parameters())",
    link="https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad",
)
CUT = Fix(
    "Detach the output of the network that this pass does not train.",
    after="loss = critic(generator(noise).detach()).mean()",
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html",
)
DATA = Fix("Disable gradients of input data.", after="features = torch.tensor(table)")
RULE = wasted(
    "LB08",
    Cause.UNUSED_GRADIENT,
    says={
        "": "{count} backward nodes compute {detail} that no optimizer uses",
        "single": "{count} backward nodes compute {detail} that nothing reads",
        "cleared": "{count} backward nodes compute {detail} that are cleared before an optimizer uses them",
    },
    fixes={"": (FREEZE, CUT), "single": (DATA,), "cleared": (CUT, FREEZE)},
    confidence={
        "": Confidence(Level.MEDIUM, "an optimizer that does not step in this recording may use the gradients"),
        "cleared": Confidence(Level.HIGH, "when optimizers read and clear gradients is recorded"),
    },
    often=0.5,  # of the steps (our choice)
)

EXAMPLES = [
    # only the head, of 4 x 8, is trained; the backward pass through the trunk takes 40 of 100 ms
    Fires("""
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
    """),
    # all is trained
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-20 | aten::ones_like 21-22 | "Optimizer.step#SGD.step" 90-99
        cpu  aten::add_ 91-94 shapes=[[4,8],[4,8],[]] | aten::add_ 95-98 shapes=[[64,8],[64,8],[]]
        cpu  "autograd::engine::evaluate_function: MmBackward0" 23-30 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 31-32 | aten::mm 24-29
        cpu  torch::autograd::AccumulateGrad 31-32 shapes=[[64,8]]
    """),
]
