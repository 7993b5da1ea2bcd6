"""All is paired with all, and only the diagonal is used.

`generalized_box_iou(boxes, targets).diag()` compares each box with all targets, and keeps its own.

Why it costs
    A table of n by n is computed, and gradients go back through it, for n of its numbers.

How to fix
    Compute with pairs in rows: broadcast nothing, `(a * b).sum(-1)` for `(a @ b.T).diag()`.

Ignore when
    the whole table is used in a way that was not recorded.

Sources
    https://docs.pytorch.org/docs/stable/notes/broadcasting.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.PairwiseDistance.html
"""

from diagnose.facts.shapes.pairs import Pairs
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
BEST = 0.5  # of what is likely to be left (our choice)
MOST_SHOWN = 4  # names of ops in the evidence
ROW_BY_ROW = Fix(
    "Compute the pairs that are wanted, row by row.", before="near = overlap(boxes[:, None], truth[None]).diagonal()",
    after="near = overlap(boxes, truth)", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/notes/broadcasting.html",
)  # fmt: skip


@rule("AT23")
def only_the_diagonal(diagonals_of_pairs: tuple[Pairs, ...], steps: Steps) -> Verdicts:
    large = [one for one in diagonals_of_pairs if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in diagonals_of_pairs), default=0)
        share = percent(most / max(steps.mean_ns, 1))
        yield Clean(f"tables of which the diagonal is used take {share} of the step at most")
    for one in large:
        likely = max(one.left, 1 / one.rows)
        names = ", ".join(one.ops[:MOST_SHOWN]) + ", ..." * (len(one.ops) > MOST_SHOWN)
        left = Between((1 + likely) / 2, likely, BEST * likely)
        yield Finding(
            evidence=(
                Evidence(
                    f"{names} make a table of {one.rows:,} by {one.columns:,}, of which only the diagonal is taken:"
                    f" {ms(one.work.longest_ns)} a step.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, left),),
            fixes=(ROW_BY_ROW,),
            confidence=Confidence(Level.MEDIUM, "what takes such a table is told by shapes only"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
