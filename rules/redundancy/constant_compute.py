"""A constant is recomputed in every step.

Positions, masks, grids, filters or fixed targets: their inputs never change, yet every step recomputes them.
Ignore when
    the inputs change now and then: only two steps in a row were compared. Then recompute where they change.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT19",
    Cause.CONSTANT,
    says="{ops} recompute the previous step's results from the same values",
    fixes=(
        Fix(
            "Compute the constant once, before training. In a module, register it as a buffer.",
            after='self.register_buffer("rotations", rotations(size), persistent=False)  # in __init__',
            effort=2,
            link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
        ),
    ),
    confidence=Confidence(Level.MEDIUM, "values were traced through two steps only"),
)

EXAMPLES = [
    Fires(  # 30 ms, and the 1 ms between
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::outer always | aten::sin takes 0 always | aten::mm takes 1
        cpu  aten::outer 0-10 | aten::sin 11-31 | aten::mm 40-90
        """,
        saving_ms=(30, 31),
    ),
    # each step has values of its own
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        values aten::outer | aten::sin takes 0 | aten::mm takes 1
        cpu  aten::outer 0-10 | aten::sin 11-31 | aten::mm 40-90
    """),
    CannotTell(  # the script may use one batch again and again
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::sin takes - always | aten::mm takes 0
        cpu  aten::sin 11-31 | aten::mm 40-90
        """,
        because="new data",
    ),
]
