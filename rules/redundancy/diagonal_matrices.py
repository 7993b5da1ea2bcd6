"""Diagonal matrices are treated as if they were full.

Numbers are put on the diagonals of matrices (`torch.diag_embed`), which then are multiplied, factored and solved: by
`MultivariateNormal(mean, torch.diag_embed(variance))`, or to scale the columns of a batch.

Why it costs
    A matrix of n by n takes n times the memory of its diagonal, and up to n squared times the arithmetic. Factoring and
    solving small matrices comes with many calls besides.

How to fix
    Work on the diagonal: `Independent(Normal(mean, variance.sqrt()), 1)` is the same distribution, `x * scale` the same
    product, `x / scale` the same solution.

Ignore when
    matrices get entries beside the diagonal later.

Sources
    https://docs.pytorch.org/docs/stable/distributions.html#independent
"""

from diagnose.facts.shapes.row_ops import DiagonalMatrices
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.03  # of the step, on the host or the device (our choice)
LEFT = Between(0.5, 0.15, 0.05)  # of the time: the same on the diagonals (our choice)
INDEPENDENT = Fix(
    "Describe independent numbers as such.", before="MultivariateNormal(mean, torch.diag_embed(variance))",
    after="Independent(Normal(mean, variance.sqrt()), 1)", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/distributions.html#independent",
)  # fmt: skip
SCALE = Fix(
    "Multiply by the diagonal instead of the matrix.", before="torch.diag_embed(scale) @ x",
    after="scale.unsqueeze(-1) * x", safety=Safety.ROUNDING,
)  # fmt: skip


@rule("AT15")
def diagonals_as_matrices(diagonal_matrices: tuple[DiagonalMatrices, ...], steps: Steps) -> Verdicts:
    large = [one for one in diagonal_matrices if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in diagonal_matrices), default=0)
        yield Clean(f"work on diagonal matrices takes {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        on_device = f", {ms(one.work.device_ns)} of GPU time" * (one.work.device_ns > 0)
        yield Finding(
            evidence=(
                Evidence(
                    f"{' x '.join(map(str, one.shape))} numbers make matrices of their diagonals, which {one.ops} ops a"
                    f" step work on, and go back through: {ms(one.work.host_ns)} of host time{on_device}.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, LEFT), Shorten(one.work.work_ids, LEFT)),
            fixes=(INDEPENDENT, SCALE),
            confidence=Confidence(Level.MEDIUM, "matrices are known by their shape"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # 1 ms to make them, 20 to factor
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::diag_embed 0-1 shapes=[[128,16],[],[],[]] | aten::linalg_cholesky 1-21 shapes=[[128,16,16],[]]
        """
    ),
    Silent(  # matrices that were not made so
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::diag_embed 0-1 shapes=[[128,16],[],[],[]] | aten::linalg_cholesky 1-21 shapes=[[128,8,8],[]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
