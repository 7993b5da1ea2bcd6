"""All pairs are computed for their diagonal.

`generalized_box_iou(boxes, targets).diag()` compares each box with all targets, and keeps its own.

Ignore when
    the whole table is used in a way that was not recorded.
"""

from diagnose.rulekit.vocabulary import *

LEAST = 32  # rows of a table that is looked at (our choice)
DIAGONALS, CUTS = "diagonal|diag|trace", "unbind|split|chunk|select|slice"


def _only_diagonal(one: Match) -> bool:
    """Cuts leave tables only of what has several numbers for each pair; the largest of one tensor is that of all."""
    cuts = (call for call in one.calls(1) if call.name in CUTS.split("|"))
    largest = (call for call in one.calls(1) if call.name in ("max", "min"))
    return (
        one.n >= LEAST
        and not any(shape[:2] == (one.n, one.n) for shape in one.calls(0)[0].shapes)
        and not one.seen_before((one.n, one.n))
        and all(len(call.shapes[0]) > 2 for call in cuts)
        and all(len(call.shapes) == 2 for call in largest)
    )


def _left(one: Found) -> Between:
    likely = max(one.least_left, 1 / one.n)
    return Between((1 + likely) / 2, likely, likely / 2)


RULE = rewrite(
    "AT23",
    "making tables of which the diagonal is used",
    (
        Op(f"{ELEMENTWISE}|max|min|mm|matmul|cdist", made="n n *_"),
        Takers("n n *_", names=f"{ELEMENTWISE}|max|min|{CUTS}|{DIAGONALS}", must=DIAGONALS),
    ),
    where=_only_diagonal,
    says="{names} make a table of {n:,} by {n:,}, of which only the diagonal is taken",
    left=_left,
    fixes=(
        Fix(
            "Compute the pairs that are wanted, row by row.",
            before="near = overlap(boxes[:, None], truth[None]).diagonal()",
            after="near = overlap(boxes, truth)",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/notes/broadcasting.html",
        ),
    ),
    why="what takes such a table is told by shapes only",
)

EXAMPLES = [
    Fires(  # 40 ms, of which two ops would take 0.01 each, and a row's share of 1 / 500 more: 0.08
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::maximum 0-20 shapes=[[500,1],[1,500]] | aten::mul 20-40 shapes=[[500,500],[500,500]]
        cpu  aten::diagonal 40-40.1 shapes=[[500,500]] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """,
        saving_ms=(20, 60.2),
    ),
    Silent(  # as in a contrastive loss: the table is taken as a whole, too
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::matmul 0-40 shapes=[[500,64],[64,500]] | aten::diagonal 40-40.1 shapes=[[500,500]]
        cpu  aten::logsumexp 41-42 shapes=[[500,500]] | aten::mm 50-90 shapes=[[8,8],[8,8]]
        """
    ),
]
