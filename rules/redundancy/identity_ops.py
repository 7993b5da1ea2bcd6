"""Ops that return their input.

What is normalised already is normalised again, a mask of zeros is added, a weight of one multiplied: the result is the
input. All of the tensor is read and written, and what is only made for it is made in vain.

Ignore when
    other batches do need it: two steps were looked at. Guards (clamp, where, masked_fill) are not counted.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT20",
    Cause.IDENTITY,
    says="{ops} gave back what went in, in both steps that were compared",
    fixes=(
        Fix(
            "Use the input. Where a mask or a weight matters only at times, ask before: `if mask is not None`.",
            before="scores = query @ normalize(bank).T  # its rows were normalised when they were stored",
            after="scores = query @ bank.T",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html",
        ),
    ),
    confidence=Confidence(Level.MEDIUM, "results and inputs were compared, in two steps only"),
)

EXAMPLES = [
    Fires(  # the norm is made for the division only: 30 ms, and the 1 ms between
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::linalg_vector_norm | aten::div gives - takes 0 | aten::mm takes 1
        cpu  aten::linalg_vector_norm 0-10 | aten::div 11-31 | aten::mm 40-90
        """,
        saving_ms=(30, 48),
    ),
    Silent(  # something else takes the norm as well, and the division changes what it takes
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::linalg_vector_norm | aten::div takes 0 | aten::mm takes 1 | aten::sum takes 0
        cpu  aten::linalg_vector_norm 0-10 | aten::div 11-31 | aten::mm 40-90 | aten::sum 91-92
        """
    ),
]
