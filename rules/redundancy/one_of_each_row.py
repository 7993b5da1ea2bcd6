"""All of a row is computed, and one number of it used.

`torch.where(one_hot(labels, classes).bool(), margin(scores), scores)` adds a margin to all scores, and takes one.

Why it costs
    A mask and each op of the margin go over all classes of all rows, and so do their gradients.

How to fix
    Take the one with `gather`, compute with it, and put it back with `scatter`.

Ignore when
    rows have several places, or many: then the mask is no `one_hot`.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.gather.html
    https://docs.pytorch.org/docs/stable/generated/torch.scatter.html
"""

from diagnose.facts.shapes.pairs import Pairs
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
BEST = 0.5  # of what is likely to be left (our choice)
MOST_SHOWN = 4  # names of ops in the evidence
GATHER = Fix(
    "Compute with what is chosen only.",
    before="scores = torch.where(one_hot(labels, classes).bool(), margin(cosines), cosines)",
    after="right = labels[:, None]\nscores = cosines.scatter(1, right, margin(cosines.gather(1, right)))",
    safety=Safety.SAME_NUMBERS, link="https://docs.pytorch.org/docs/stable/generated/torch.gather.html",
)  # fmt: skip


@rule("AT25")
def computed_for_all(one_of_each_row: tuple[Pairs, ...], steps: Steps) -> Verdicts:
    large = [one for one in one_of_each_row if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        share = percent(max((one.work.longest_ns for one in one_of_each_row), default=0) / max(steps.mean_ns, 1))
        yield Clean(f"what is computed for all and used for one of each row takes {share} of the step at most")
    for one in large:
        likely = max(one.left, 1 / one.columns)
        names = ", ".join(one.ops[:MOST_SHOWN]) + ", ..." * (len(one.ops) > MOST_SHOWN)
        yield Finding(
            evidence=(
                Evidence(
                    f"{names} go over {one.rows:,} rows of {one.columns:,}, and where() takes one of each by a mask:"
                    f" {ms(one.work.longest_ns)} a step.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, Between((1 + likely) / 2, likely, BEST * likely)),),
            fixes=(GATHER,),
            confidence=Confidence(Level.MEDIUM, "that where() takes what came before it is told by shapes only"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
