"""Full sort where top-k suffices.

`scores.argsort(descending=True)[:, :5]` puts all scores of a row in order, and uses five. A selection goes over them
once.

Ignore when
    the order of all is used later.
"""

from diagnose.rulekit.vocabulary import *

RULE = rewrite(
    "AT11",
    "sorting for the first few",
    (
        Op("sort|argsort", ("*rows n",)),
        Op("slice|narrow", ("*rows n",), most=3, left=1, back=1),
        Op("*", some="*rows k", within=2, left=1, back=1),
    ),
    where=lambda one: 0 < one.k <= one.n / 8,  # Up to which selecting is quicker than sorting (our choice).
    says="{rows} x {n:,} numbers are sorted, and {k} of each row used",
    left=Between(0.5, 0.15, 0.03),  # our choice
    calls_go=True,
    fixes=(
        Fix(
            "Choose the largest instead of sorting all.",
            before="best = scores.argsort(dim=1, descending=True)[:, :5]",
            after="best = scores.topk(5, dim=1).indices",
            safety=Safety.ROUNDING,  # of equal numbers it may choose others than the sort, which is not stable either
            link="https://docs.pytorch.org/docs/stable/generated/torch.topk.html",
        ),
    ),
    why="whether the order of all is used later is not recorded",
)

EXAMPLES = [
    Fires(  # of 40 ms
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::argsort 0-40 shapes=[[32,8000],[],[]] | aten::slice 40-41 shapes=[[32,8000],[],[],[],[]]
        cpu  aten::eq 41-42 shapes=[[32,5],[32,1]] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """,
        saving_ms=(20, 59.6),
    ),
    Silent(  # half of each row is used
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::argsort 0-40 shapes=[[32,8000],[],[]] | aten::slice 40-41 shapes=[[32,8000],[],[],[],[]]
        cpu  aten::eq 41-42 shapes=[[32,4000],[32,1]] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """
    ),
]
