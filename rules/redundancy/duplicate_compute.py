"""The same values are computed twice.

Within one step, ops run again on the same values. Examples: a function called in every layer, features computed for
loss and metric, a weight rebuilt at every use. With gradients on, the backward pass repeats each of them.
Ignore when
    memory is too short to keep the result. Recomputation by activation checkpointing is not counted.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT18",
    Cause.DUPLICATE,
    says="{ops} repeat {times} a computation{there} on the same values",
    fixes=(
        Fix(
            "Compute the result once per step, and reuse it; `detach()` it where no gradients are needed.",
            after="known = features(batch)\nfor one in rounds: total += one @ known",
            effort=2,
            link="https://en.wikipedia.org/wiki/Value_numbering",
        ),
        Fix(
            "Cache parametrized weights for each forward pass.",
            after="with torch.nn.utils.parametrize.cached():\n    out = model(batch)",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.parametrize.cached.html",
        ),
    ),
    confidence=Confidence(Level.HIGH, "values were traced and compared in two steps"),
)

EXAMPLES = [
    Fires(  # twice too often: 20 ms, and at most the 2 ms between
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::exp takes 0 | aten::mm as 0 | aten::exp as 1 | aten::mm as 0 | aten::exp as 1
        cpu  aten::mm 0-8 | aten::exp 9-11 | aten::mm 20-28 | aten::exp 29-31 | aten::mm 40-48 | aten::exp 49-51
        """,
        saving_ms=(20, 22),
    ),
    # checkpoints compute again in the backward pass
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::exp | aten::mm as 0 back | aten::exp as 1 back
        cpu  aten::mm 0-8 | aten::exp 9-11 | aten::mm 20-28 | aten::exp 29-31
    """),
]
