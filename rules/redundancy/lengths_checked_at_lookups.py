"""Each lookup checks how long its rows are.

`nn.Embedding(..., max_norm=1.0)` measures every row that is looked up before it is used, and shortens those above the
limit, in the forward pass of every step.

Why it costs
    On a CPU rows are gone through one after the other, with some ops for each. On a GPU all indices are sorted first,
    to find the different ones.

How to fix
    Leave `max_norm` out if the limit is never reached (`table.weight.norm(dim=1).max()` tells). Else shorten the rows
    that changed after the optimizer's step, all at once.

Ignore when
    rows do reach the limit, and it has to hold in the middle of a step.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/Embedding.cu
"""

from diagnose.facts.shapes.row_ops import RowOps
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
LEFT = Between(0.3, 0.0, 0.0)  # of the time; low if rows are shortened all at once instead (our choice)
WITHOUT = Fix(
    "Leave the limit out if rows never reach it.", before="nn.Embedding(items, width, max_norm=1.0)",
    after="nn.Embedding(items, width)", safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
)  # fmt: skip
AT_ONCE = Fix(
    "Else shorten rows at once, after the optimizer's step.", before="nn.Embedding(items, width, max_norm=1.0)",
    after="with torch.no_grad(): table.weight[used] = torch.renorm(table.weight[used], 2, 0, 1.0)",
    safety=Safety.ROUNDING, link="https://docs.pytorch.org/docs/stable/generated/torch.renorm.html",
)  # fmt: skip


@rule("AT14")
def lengths_checked(limited_lookups: tuple[RowOps, ...], steps: Steps) -> Verdicts:
    large = [one for one in limited_lookups if one.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.longest_ns for one in limited_lookups), default=0)
        yield Clean(f"checking the length of rows takes {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        yield Finding(
            evidence=(
                Evidence(
                    f"Rows of a table of {' x '.join(map(str, one.tensor.shape))} are measured at each of {one.calls}"
                    f" lookups a step: {ms(one.longest_ns)}.",
                    one.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, LEFT.of_share(one.own_share)), Shorten(one.work.work_ids, LEFT)),
            fixes=(WITHOUT, AT_ONCE),
            confidence=Confidence(Level.MEDIUM, "whether rows reach the limit is not recorded"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
