"""A branch is computed, and multiplied by zeros.

`hidden = hidden + layer(hidden) * keep` with a `keep` of zero adds nothing, whatever the layer gives.

Why it costs
    The branch is computed, and gradients of zero go back through it.

How to fix
    Ask before: `if keep: hidden = hidden + layer(hidden)`.

Ignore when
    an optimizer is to move weights whose gradients are zero (momentum, weight decay): without gradients it leaves them
    alone. And under DistributedDataParallel, which waits for all gradients unless `find_unused_parameters` is set.

Sources
    https://arxiv.org/abs/1603.09382
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from diagnose.facts.values.known_values import KnownValues
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
ASK = Fix(
    "Ask whether the branch is kept before it is computed.", before="hidden = hidden + layer(hidden) * keep",
    after="if keep: hidden = hidden + layer(hidden)", safety=Safety.NEEDS_JUDGEMENT,
)  # fmt: skip


@rule("AT26")
def computed_for_nothing(multiplied_by_nothing: tuple[KnownValues, ...], steps: Steps) -> Verdicts:
    large = [one for one in multiplied_by_nothing if one.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        share = percent(sum(one.longest_ns for one in multiplied_by_nothing) / max(steps.mean_ns, 1))
        yield Clean(f"what is multiplied by zeros takes {share} of the step")
    for one in large:
        times = f" {one.times} times" * (one.times > 1)
        yield Finding(
            evidence=(
                Evidence(
                    f"{ops_named(one)}: the result was multiplied by zeros{times} in the step that was looked at;"
                    f" {ms(one.longest_ns)} a step with the backward pass.",
                    one.longest_ns, "ns",
                ),
            ),
            edits=left_out(one),
            fixes=(ASK,),
            confidence=Confidence(Level.MEDIUM, "one step was looked at; in others it may be more or less"),
            site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # 30 ms, and the 2 ms between
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::tanh takes 0 | aten::mul takes 1 nothing | aten::add takes 2
        cpu  aten::mm 0-15 | aten::tanh 16-26 | aten::mul 27-32 | aten::add 40-90
        """,
        saving_ms=(30, 51.6),
    ),
    Silent(  # something else takes it, too
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm | aten::mul takes 0 nothing | aten::add takes 0,1
        cpu  aten::mm 0-30 | aten::mul 31-32 | aten::add 40-90
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
