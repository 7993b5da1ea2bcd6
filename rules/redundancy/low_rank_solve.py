"""A low-rank system is solved at full size.

The product of a tall matrix and its transpose has no higher rank than the tall one has columns. With a multiple of the
identity added, as in ridge regression, it is factored as if it had. The work grows with the cube of its size.

Ignore when
    what is added has a full rank of its own, other than a multiple of the identity.
"""

from diagnose.rulekit.vocabulary import *

FACTORS = (
    "linalg_solve|linalg_solve_ex|linalg_cholesky|linalg_cholesky_ex|cholesky|cholesky_solve|cholesky_inverse|linalg_inv"
    "|linalg_inv_ex|inverse|linalg_pinv|linalg_lu_factor|linalg_eigh|linalg_solve_triangular|triangular_solve"
    "|linalg_slogdet|slogdet|logdet|det"
)


def _left(one: Found) -> Between:
    """Flops go with the rank by the size, to the power of 2 or 3; small systems have a least time."""
    smaller = one.rank / one.size
    return Between((1 + smaller) / 2, smaller, smaller**2)


SOLVED = Takers("*many size size", until=FACTORS, within=24)
RULE = rewrite(
    "AT17",
    "factoring matrices of low rank",
    (Op("matmul|mm|bmm", ("*many size rank", "*many rank size")), SOLVED),
    (Op("addmm|baddbmm", ("*_", "*many size rank", "*many rank size")), SOLVED),
    where=lambda one: 0 < 2 * one.rank <= one.size,
    says="Matrices of {size:,} by {size:,} are factored that are products of rank {rank:,} at most",
    left=_left,
    fixes=(
        Fix(
            "Solve the smaller system: by way of the examples rather than the features.",
            before="solve(X.mT @ X + a * eye(features), X.mT @ y)",
            after="X.mT @ solve(X @ X.mT + a * eye(examples), y)",
            safety=Safety.ROUNDING,
            effort=2,
            link="https://arxiv.org/abs/1805.08136",
        ),
    ),
    why="the rank is told by shapes; what is added is not known",
)

EXAMPLES = [
    Fires(  # a product of 10 ms and 40 ms of solving, of a quarter of the size
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::matmul 0-10 shapes=[[4,256,64],[4,64,256]] | aten::add 10-20 shapes=[[4,256,256],[256,256]]
        cpu  aten::linalg_solve 20-50 shapes=[[4,256,256],[4,256,5]]
        """,
        saving_ms=(18.75, 63.6),
    ),
    Silent(  # as many examples as features
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::matmul 0-10 shapes=[[4,64,256],[4,256,64]] | aten::linalg_solve 20-50 shapes=[[4,64,64],[4,64,5]]
        """
    ),
]
