"""The same values are computed twice.

Within one step ops run once more on the very values that they had been given before: a function is called for each
layer or round though its result is known, features are computed for the loss and again for a metric, a weight is made
of others at every use. With gradients on, the backward pass goes through each of them.

Ignore when
    keeping the result takes memory that is not there. What checkpoints compute again in the backward pass is not
    counted.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT18",
    Cause.DUPLICATE,
    says="{ops} repeat {times} what had been computed{there} from the same values",
    fixes=(
        Fix(
            "Compute it once in a step, and use that; `detach()` it where no gradients are needed.",
            after="known = features(batch)\nfor one in rounds: total += one @ known",
            effort=2,
            link="https://en.wikipedia.org/wiki/Value_numbering",
        ),
        Fix(
            "Of parametrized weights, make each once for a forward pass.",
            after="with torch.nn.utils.parametrize.cached():\n    out = model(batch)",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.parametrize.cached.html",
        ),
    ),
    confidence=Confidence(Level.HIGH, "values were followed from op to op in two steps, and compared"),
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
    Silent(  # checkpoints compute again in the backward pass
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::exp | aten::mm as 0 back | aten::exp as 1 back
        cpu  aten::mm 0-8 | aten::exp 9-11 | aten::mm 20-28 | aten::exp 29-31
        """
    ),
]
