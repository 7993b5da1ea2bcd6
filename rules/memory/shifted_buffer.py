"""A FIFO buffer is shifted instead of used as a ring.

`memory = memory.roll(-new, 0)` or `torch.cat((memory[new:], rows))` in every step: a memory of plays, a queue of
earlier keys, a window of a stream. All rows are read and written to put in a few.

Ignore when
    the order of rows in memory matters to what reads it, as a window that a convolution slides over.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "ME06",
    Cause.SHIFTED_BUFFER,
    says="Tensors of the step before, the largest {detail}, are moved whole for a few new rows, {times} a step",
    fixes=(
        Fix(
            "Write the new rows over the oldest ones, and remember where they are.",
            before="memory = memory.roll(-new, 0)\nmemory[-new:] = rows",
            after="memory[spot : spot + new] = rows\nspot = (spot + new) % len(memory)",
            safety=Safety.NEEDS_JUDGEMENT,
            link="https://github.com/facebookresearch/moco/blob/main/moco/builder.py",
        ),
    ),
    left=Between(0.2, 0.05, 0.0),  # To write the new rows (our choice).
    confidence=Confidence(Level.MEDIUM, "whether the order of rows matters is not recorded"),
    basis=Basis.RULE_OF_THUMB,
)

EXAMPLES = [
    Fires(
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::roll carried 1 | aten::copy_ takes 0 | aten::mm
        cpu  aten::roll 0-50 shapes=[[4096,64],[],[]] | aten::copy_ 50-51 | aten::mm 60-90
        """,
        saving_ms=(40, 71.4),
    ),
    Silent(  # a batch is rolled
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::roll takes - | aten::copy_ takes 0 | aten::mm
        cpu  aten::roll 0-50 shapes=[[4096,64],[],[]] | aten::copy_ 50-51 | aten::mm 60-90
        """
    ),
]
