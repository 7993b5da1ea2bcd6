"""The same is computed again from the same values.

Within one step ops run once more on the very values that they had been given before: a function is called for each
layer or round though its result is known, features are computed for the loss and again for a metric.

Why it costs
    The result is the one that is there already. With gradients on, the backward pass goes through both.

How to fix
    Keep the result and use it again: compute it before the loop, hand it on, return it with the other. Where it is
    needed once with gradients and once without, compute it with them and `detach()` it.

Ignore when
    keeping it takes memory that is not there. What checkpoints compute again in the backward pass is not counted.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
    https://en.wikipedia.org/wiki/Value_numbering
"""

from diagnose.facts.values.known_values import KnownValues
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
ONCE = Fix(
    "Compute it once in a step, and use that.",
    before="for one in rounds: total += one @ features(batch)",
    after="known = features(batch)\nfor one in rounds: total += one @ known",
    effort=2,
)  # fmt: skip


@rule("AT18")
def computed_again(repeated_values: tuple[KnownValues, ...], steps: Steps) -> Verdicts:
    large = [one for one in repeated_values if one.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        share = percent(sum(one.longest_ns for one in repeated_values) / max(steps.mean_ns, 1))
        yield Clean(f"what is computed again from the same values takes {share} of the step")
    for one in large:
        where = f" on line {one.known_at.line} ({one.known_at.function})" if one.known_at else ""
        yield Finding(
            evidence=(
                Evidence(
                    f"{ops_named(one)}: computed {one.times} more time{'s' * (one.times > 1)} in a step from the same"
                    f" values, after it had been{where}; {ms(one.longest_ns)} a step with the backward pass.",
                    one.longest_ns, "ns",
                ),
            ),
            edits=left_out(one),
            fixes=(ONCE,),
            confidence=Confidence(Level.HIGH, "values were followed from op to op in two steps, and compared"),
            site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # twice too often: 20 ms, and at most the 2 ms between
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::exp takes 0 | aten::mm as 0 | aten::exp as 1 | aten::mm as 0 | aten::exp as 1
        cpu  aten::mm 0-8 | aten::exp 9-11 | aten::mm 20-28 | aten::exp 29-31 | aten::mm 40-48 | aten::exp 49-51
        """,
        saving_ms=(20, 37.44),
    ),
    Silent(  # checkpoints compute again in the backward pass
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::exp | aten::mm as 0 back | aten::exp as 1 back
        cpu  aten::mm 0-8 | aten::exp 9-11 | aten::mm 20-28 | aten::exp 29-31
        """
    ),
    Silent(  # other values each time
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::exp | aten::mm | aten::exp
        cpu  aten::mm 0-8 | aten::exp 9-11 | aten::mm 20-28 | aten::exp 29-31
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
