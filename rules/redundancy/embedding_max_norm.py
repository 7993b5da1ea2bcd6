"""Embedding renormalises rows at every lookup (max_norm).

`nn.Embedding(..., max_norm=1.0)` measures every row that is looked up before it is used, and shortens those above the
limit, in the forward pass of every step.

Ignore when
    rows reach the limit between two steps of the optimizer.
"""

from diagnose.rulekit.vocabulary import *

LEFT = Between(0.3, 0.0, 0.0)  # of the time; low if rows are shortened all at once instead (our choice)

RULE = rewrite(
    "AT14",
    "checking the length of rows",
    (Op("embedding_renorm_", ("rows width",)),),
    says="Rows of a table of {rows:,} x {width} are measured at each of {times} lookups a step",
    left=lambda one: LEFT.of_share(one.own_share),
    calls_go=True,
    fixes=(
        Fix.of(fixes.EmbeddingNorm()),
        Fix(
            "Else shorten rows at once, after the optimizer's step.",
            before="nn.Embedding(items, width, max_norm=1.0)",
            after="with torch.no_grad(): table.weight[used] = torch.renorm(table.weight[used], 2, 0, 1.0)",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.renorm.html",
        ),
    ),
    why="whether rows reach the limit is not recorded",
)

EXAMPLES = [
    Fires(  # 20 of 100 ms
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding_renorm_ 0-20 shapes=[[9000,64],[512],[],[]] | aten::embedding 20-21
        """,
        saving_ms=(14, 34.4),
    ),
    Silent(  # a lookup without a limit
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding 0-20 shapes=[[9000,64],[512],[],[],[]]
        """
    ),
]
