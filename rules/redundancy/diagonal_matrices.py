"""Diagonal matrices are multiplied and factorised as full ones.

Numbers are put on the diagonals of matrices (`torch.diag_embed`), which then are multiplied, factored and solved: by
`MultivariateNormal(mean, torch.diag_embed(variance))`, or to scale the columns of a batch. A matrix of n by n takes n
times the memory of its diagonal, and up to n squared times the arithmetic.

Ignore when
    matrices get entries beside the diagonal later.
"""

from diagnose.rulekit.vocabulary import *

ADDS = ("add", "sub", "baddbmm", "where", "lerp")  # by which entries come beside the diagonal


def _stays_diagonal(one: Match) -> bool:
    """Of a batch, as no weight has its size; none were there before, which may be full, and no two are added."""
    made = (*one.shape("many"), one.n, one.n)
    added = (call for call in one.calls(1) if call.name.startswith(ADDS))
    return (
        len(made) > 2 and one.n > 1 and not one.seen_before(made) and all(call.shapes.count(made) < 2 for call in added)
    )


RULE = rewrite(
    "AT15",
    "working on diagonal matrices",
    (Op("diag_embed", ("*many n",)), Takers("*many n n")),
    where=_stays_diagonal,
    says="{many} x {n} numbers make matrices of their diagonals, which are worked on as a whole ({names})",
    left=Between(0.5, 0.15, 0.05),  # the same on the diagonals (our choice)
    calls_go=True,
    fixes=(
        Fix(
            "Describe independent numbers as such.",
            before="MultivariateNormal(mean, torch.diag_embed(variance))",
            after="Independent(Normal(mean, variance.sqrt()), 1)",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/distributions.html#independent",
        ),
        Fix(
            "Multiply by the diagonal instead of the matrix.",
            before="torch.diag_embed(scale) @ x",
            after="scale.unsqueeze(-1) * x",
            safety=Safety.ROUNDING,
        ),
    ),
    why="matrices are known by their shape",
)

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
]
