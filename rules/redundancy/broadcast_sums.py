"""Sums over pairs of rows are computed by broadcasting.

`(a[:, None] - b[None]).square().sum(-1)` and `(a[:, None] * b[None]).sum(-1)` write a tensor of rows x rows x columns,
read it again for each op, and once more for each in the backward pass.

Why it costs
    Every element is moved through memory several times for one or two operations on it. A product of matrices gives
    the same sums, keeps rows and columns in registers and caches, and writes rows x rows only.

How to fix
    Of products: `a @ b.T`. Of squared differences: squared lengths and a product, or `torch.cdist`.

Ignore when
    rows are so alike that the difference of large lengths loses the digits that matter.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.cdist.html
    https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html
"""

from diagnose.facts.shapes.broadcasts import PairSums
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
LEFT = Between(0.5, 0.2, 0.05)  # of the time: a product of matrices moves columns times fewer bytes (our choice)
PRODUCT = Fix(
    "Multiply matrices instead.", before="(a[:, None] * b[None]).sum(-1)", after="a @ b.T", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.matmul.html",
)  # fmt: skip
LENGTHS = Fix(
    "Use squared lengths and one product of matrices.", before="(a[:, None] - b[None]).square().sum(-1)",
    after="(a.square().sum(-1)[:, None] + b.square().sum(-1) - 2 * a @ b.T).clamp(min=0)", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.cdist.html",
)  # fmt: skip


@rule("AT06")
def summed_after_broadcasting(pair_sums: tuple[PairSums, ...], steps: Steps) -> Verdicts:
    large = [one for one in pair_sums if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in pair_sums), default=0)
        yield Clean(f"sums over pairs by broadcasting take {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        longest = one.work.longest_ns
        what = "Squares of differences" if one.differences else "Products"
        yield Finding(
            evidence=(
                Evidence(
                    f"{what} of all pairs of rows, {' x '.join(map(str, one.shape))} elements, are written to memory"
                    f" and summed again: with the backward pass {ms(longest)} a step.",
                    longest, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, LEFT), Shorten(one.work.work_ids, LEFT)),
            fixes=(LENGTHS if one.differences else PRODUCT,),
            confidence=Confidence(Level.HIGH, "the shapes are recorded, and what is done with them"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # of 60 ms half goes at least, most likely 48 ms; the rest gets faster then, too
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::sub 0-20 shapes=[[256,1,64],[1,256,64],[]] | aten::square 20-40 shapes=[[256,256,64]]
        cpu  aten::sum 40-60 shapes=[[256,256,64],[],[],[]] | aten::mm 60-90 shapes=[[256,64],[64,64]]
        """,
        saving_ms=(30, 75.6),
    ),
    Silent(  # a bias is broadcast, and nothing grows by it
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::sub 0-20 shapes=[[256,256,64],[1,256,64],[]] | aten::square 20-40 shapes=[[256,256,64]]
        cpu  aten::sum 40-60 shapes=[[256,256,64],[],[],[]] | aten::mm 60-90 shapes=[[256,64],[64,64]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
