"""A branch is computed and then multiplied by zero.

`hidden = hidden + layer(hidden) * keep` with a `keep` of zero adds nothing, whatever the layer gives. The branch is
computed, and gradients of zero go back through it.

Ignore when
    an optimizer is to move weights whose gradients are zero (momentum, weight decay): without gradients it leaves them
    alone. And under DistributedDataParallel, which waits for all gradients unless `find_unused_parameters` is set.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT26",
    Cause.MULTIPLIED_BY_ZEROS,
    says="What {ops} compute was multiplied by zeros, {times} in the step that was looked at",
    fixes=(
        Fix(
            "Ask whether the branch is kept before it is computed.",
            before="hidden = hidden + layer(hidden) * keep",
            after="if keep: hidden = hidden + layer(hidden)",
            safety=Safety.NEEDS_JUDGEMENT,
            link="https://arxiv.org/abs/1603.09382",
        ),
    ),
    confidence=Confidence(Level.MEDIUM, "one step was looked at; in others it may be more or less"),
)

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
        cpu  aten::mm 0-30 | aten::mul 31-31.5 | aten::add 40-90
        """
    ),
]
