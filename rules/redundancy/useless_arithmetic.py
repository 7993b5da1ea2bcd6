"""Arithmetic gives back what it took.

What is normalised already is normalised again, a mask of zeros is added, a weight of one multiplied: the result is the
input.

Why it costs
    All of the tensor is read and written, and what is only made for it is made in vain.

How to fix
    Use the input. Where a mask or a weight matters only at times, ask before: `if mask is not None`.

Ignore when
    other batches do need it: two steps were looked at. Guards (clamp, where, masked_fill) are not counted.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from diagnose.facts.values.known_values import KnownValues
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
INPUT = Fix(
    "Use what goes in.", before="scores = query @ normalize(bank).T  # its rows were normalised when they were stored",
    after="scores = query @ bank.T", safety=Safety.ROUNDING,
)  # fmt: skip


@rule("AT20")
def gives_back_what_it_took(useless_arithmetic: tuple[KnownValues, ...], steps: Steps) -> Verdicts:
    large = [one for one in useless_arithmetic if one.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        share = percent(sum(one.longest_ns for one in useless_arithmetic) / max(steps.mean_ns, 1))
        yield Clean(f"arithmetic that gives back what it took takes {share} of the step")
    for one in large:
        yield Finding(
            evidence=(
                Evidence(
                    f"{ops_named(one)}: the result was what went in, in both steps that were looked at;"
                    f" {ms(one.longest_ns)} a step with what is only made for it, and the backward pass.",
                    one.longest_ns, "ns",
                ),
            ),
            edits=left_out(one),
            fixes=(INPUT,),
            confidence=Confidence(Level.MEDIUM, "results and inputs were compared, in two steps only"),
            site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
