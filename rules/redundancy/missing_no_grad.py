"""A forward pass records an autograd graph that is never used.

Gradients are enabled where nothing needs them: in validation, in a frozen teacher or generator, or for metrics. A node
for each op takes CPU time. The tensors kept for it take memory.
Ignore when
    the backward pass comes later, outside the recording.
Sources
    https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
"""

from diagnose.rulekit.vocabulary import *

NO_GRAD = Fix.of(fixes.NoGradInEvaluation())
REUSE = Fix(
    "Reuse the training's forward pass, if model and batch are the same.",
    after="hits = logits.detach().argmax(1) == labels",
    safety=Safety.ROUNDING,
)
RULE = wasted(
    "LB05",
    Cause.UNUSED_GRAPH,
    says={
        "": "Autograd records {count} ops that no recorded backward pass uses",
        "as in training": "Autograd records {count} ops that no recorded backward pass uses; training repeats the ops",
    },
    fixes={"": (NO_GRAD,), "as in training": (NO_GRAD, REUSE)},
    left={"": Between(0.95, 0.8, 0.6), "as in training": Between(0.95, 0.8, 0.0)},  # 0.4 to 0.8 in planted cases
    confidence=Confidence(Level.MEDIUM, "the cost of recording is taken from other trainings"),
    basis=Basis.RULE_OF_THUMB,
    host_only=True,
    often=0.5,  # of the steps (our choice)
)

EXAMPLES = [
    # of 60 ms of validation 20 % would go
    Fires("""
        1 step of 100
        2 threads, 4 cores
        cpu  aten::mm 0-30 sequence=1 | aten::mm 30-60 sequence=2 | aten::mm 60-70 sequence=3 | aten::sum 70-71
        cpu  "autograd::engine::evaluate_function: MmBackward0" 71-89 sequence=3 "Fwd thread id"=1
    """),
    # validation without gradients
    Silent("""
        1 step of 100
        2 threads, 4 cores
        cpu  aten::mm 0-30 | aten::mm 30-60 | aten::mm 60-70 sequence=3 | aten::sum 70-71
        cpu  "autograd::engine::evaluate_function: MmBackward0" 71-89 sequence=3 "Fwd thread id"=1
    """),
]
