"""A layer computes the same rows several times.

Rows are repeated, or looked up more often than there are rows, and then go through a layer: `linear(x[source])` in a
graph net, an encoder of images that were repeated for each sample of their code. Of N rows no more than N results
differ.

Ignore when
    the rows differ by what is drawn at random within the layer.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT10",
    Cause.EQUAL_ROWS,
    says="{share} of the rows that {ops} compute are equal to others",
    fixes=(
        Fix(
            "Apply the layer first, and look up or repeat what it gives.",
            before="messages = linear(x[source])",
            after="messages = linear(x)[source]",
            safety=Safety.ROUNDING,
            link="https://pytorch-geometric.readthedocs.io/en/latest/notes/create_gnn.html",
        ),
    ),
    left=Between(0.5, 0.0, 0.0),
    confidence={
        "": Confidence(Level.MEDIUM, "rows were compared in one step; in others more may differ"),
        "shapes": Confidence(Level.HIGH, "of so many rows of a table no more can differ"),
    },
    basis=Basis.RULE_OF_THUMB,
    often=0.5,  # of the steps (our choice)
)

EXAMPLES = [
    Fires(  # 256 rows of 64 take 60 ms: three in four are equal
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::index_select 0-10 shapes=[[64,32],[],[256]] | aten::linear 10-70 shapes=[[256,32],[8,32],[8]]
        """,
        saving_ms=(22.5, 67.3),
    ),
    Silent(  # a batch of a dataset
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::index_select 0-10 shapes=[[640,32],[],[256]] | aten::linear 10-70 shapes=[[256,32],[8,32],[8]]
        """
    ),
]
