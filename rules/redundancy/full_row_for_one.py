"""A full row is computed where one element is read.

`torch.where(one_hot(labels, classes).bool(), margin(scores), scores)` adds a margin to all scores, and takes one.
"""

from diagnose.rulekit.vocabulary import *

LEAST = 32  # rows and columns of a table that is looked at (our choice)
OF_MASKS = ("to", "eq", "ne", "view", "unsqueeze", "expand", "detach")
BETWEEN = Op("|".join({*ELEMENTWISE.split("|"), *OF_MASKS} - {"where"}), least=0, most=32)
TAKEN = Op("where", ("rows columns",) * 3, left=1, back=1)


def _left(one: Found) -> Between:
    likely = max(one.least_left, 1 / one.columns)
    return Between((1 + likely) / 2, likely, likely / 2)


RULE = rewrite(
    "AT25",
    "computing for all what is used for one of each row",
    (Op("one_hot", ("rows",)), BETWEEN, TAKEN),
    (Op("scatter", ("rows columns", "rows 1")), BETWEEN, TAKEN),
    where=lambda one: (
        min(one.rows, one.columns) >= LEAST
        and all(call.name in OF_MASKS or call.made == (one.rows, one.columns) for call in one.calls(1))
    ),
    says="{names} go over {rows:,} rows of {columns:,}, and where() takes one of each by a mask",
    left=_left,
    fixes=(
        Fix(
            "Compute with what is chosen only.",
            before="scores = torch.where(one_hot(labels, classes).bool(), margin(cosines), cosines)",
            after="right = labels[:, None]\nscores = cosines.scatter(1, right, margin(cosines.gather(1, right)))",
            link="https://docs.pytorch.org/docs/stable/generated/torch.gather.html",
        ),
    ),
    why="that where() takes what came before it is told by shapes only",
)

EXAMPLES = [
    Fires(  # 40 ms, of which two ops would take 0.01 each, and a row's share of 1 / 9,000
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::one_hot 0-20 shapes=[[64],[]] | aten::acos 20-40 shapes=[[64,9000]]
        cpu  aten::where 40-41 shapes=[[64,9000],[64,9000],[64,9000]] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """,
        saving_ms=(20, 60),
    ),
    Silent(  # who knows how many places the mask has
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::gt 0-20 shapes=[[64,9000],[64,1]] | aten::acos 20-40 shapes=[[64,9000]]
        cpu  aten::where 40-41 shapes=[[64,9000],[64,9000],[64,9000]] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """
    ),
]
