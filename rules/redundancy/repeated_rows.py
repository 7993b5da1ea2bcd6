"""A layer computes equal rows again.

Rows are repeated, or looked up more often than there are rows, and then go through a layer: `linear(x[source])` in a
graph net, an encoder of images that were repeated for each sample of their code.

Why it costs
    Of N rows no more than N results differ. All others are computed again, and so is their backward pass.

How to fix
    Apply the layer first, and repeat or look up what it gives: `linear(x)[source]`.

Ignore when
    the rows differ by what is drawn at random within the layer.

Sources
    https://pytorch-geometric.readthedocs.io/en/latest/notes/create_gnn.html
"""

from diagnose.facts.values.repeated_rows import RepeatedRows
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such layers (our choice)
SURE = Confidence(Level.HIGH, "of so many rows of a table no more can differ")
COUNTED = Confidence(Level.MEDIUM, "rows were compared in one step; in others more may differ")
MOST_SHOWN = 4  # names of ops in the evidence
FIRST = Fix(
    "Apply the layer first, and look up or repeat what it gives.", before="messages = linear(x[source])",
    after="messages = linear(x)[source]", safety=Safety.ROUNDING,
    link="https://pytorch-geometric.readthedocs.io/en/latest/notes/create_gnn.html",
)  # fmt: skip


@rule("AT10")
def rows_computed_again(repeated_rows: tuple[RepeatedRows, ...], steps: Steps) -> Verdicts:
    often = [one for one in repeated_rows if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if one.repeated_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.repeated_ns for one in often), default=0)
        yield Clean(f"layers take {percent(most / max(steps.mean_ns, 1))} of the step at most for rows that are equal")
    for one in large:
        names = ", ".join(one.ops[:MOST_SHOWN]) + ", ..." * (len(one.ops) > MOST_SHOWN)
        left = Between((1 + one.differ) / 2, one.differ, one.differ)
        counted = f"{percent(1 - one.differ)} of the rows that are computed are equal to others"
        told = f"{one.rows[1]:,} rows are computed, of which {one.rows[0]:,} differ at most" if one.rows else counted
        yield Finding(
            evidence=(
                Evidence(
                    f"{names}: {told}. With the backward pass that takes {ms(one.work.longest_ns)} a step, of which"
                    f" {ms(one.repeated_ns)} are for equal rows.",
                    one.repeated_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, left),),
            fixes=(FIRST,),
            confidence=SURE if one.rows else COUNTED,
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
