"""Everything is sorted for the first few.

`scores.argsort(descending=True)[:, :5]` puts all scores of a row in order, and uses five.

Why it costs
    Sorting n numbers takes n log n comparisons, and on a GPU several passes over memory; choosing the largest few
    takes one.

How to fix
    `scores.topk(5).indices`, or `.values`; `argmax` and `max` for one.

Ignore when
    the order of all is used later, too.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.topk.html
"""

from diagnose.facts.shapes.sorts import SortsForFew
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
# Of equal numbers it may choose others than the sort, which is not stable either: hence no Safety.SAME_NUMBERS.
LEFT = Between(0.5, 0.15, 0.03)  # of the time (our choice)
TOPK = Fix(
    "Choose the largest instead of sorting all.", before="best = scores.argsort(dim=1, descending=True)[:, :5]",
    after="best = scores.topk(5, dim=1).indices", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.topk.html",
)  # fmt: skip


@rule("AT11")
def sorted_for_few(sorts_for_few: tuple[SortsForFew, ...], steps: Steps) -> Verdicts:
    large = [one for one in sorts_for_few if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in sorts_for_few), default=0)
        yield Clean(f"sorting for the first few takes {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        yield Finding(
            evidence=(
                Evidence(
                    f"{' x '.join(map(str, one.shape))} numbers are sorted, and {one.kept} of each row used:"
                    f" {ms(one.work.longest_ns)} a step.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, LEFT), Shorten(one.work.work_ids, LEFT)),
            fixes=(TOPK,),
            confidence=Confidence(Level.MEDIUM, "whether the order of all is used later is not recorded"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
