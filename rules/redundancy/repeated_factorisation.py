"""The same matrix is factorised again.

`torch.linalg.solve(matrix, sides)` factorises the matrix, and forgets the factors: an implicit solver, a filter or a
regression that solves with the same matrix again makes them anew. Factors of n rows take 2/3 n³ operations, to solve
with them takes 2 n² for each side.

Ignore when
    the matrix changes in most steps, and did not in those that were looked at.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT29",
    Cause.REPEATED_FACTORS,
    says="torch.linalg.solve factorises a matrix {times} that it had factorised {detail}",
    fixes=(
        Fix(
            "Factorise the matrix once, and solve with the factors.",
            before="field = torch.linalg.solve(matrix, field)",
            after="factors = torch.linalg.lu_factor(matrix)  # once\nfield = torch.linalg.lu_solve(*factors, field)",
            safety=Safety.ROUNDING,
            link="https://docs.pytorch.org/docs/stable/generated/torch.linalg.lu_solve.html",
        ),
    ),
    left=Between(0.2, 0.0, 0.0),  # To solve with factors is timed by itself, as an op beside (our choice).
    confidence=Confidence(Level.HIGH, "all that was done with the matrix was followed, for two steps"),
)

EXAMPLES = [
    Fires(  # of 60 ms the 50 that make factors
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::_linalg_solve_ex matrix 0 | aten::mul
        cpu  aten::_linalg_solve_ex 0-60 | aten::linalg_lu_factor_ex 5-55 | aten::mul 70-90
        """,
        saving_ms=(40, 72.5),
    ),
    Silent(  # another one each time
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::_linalg_solve_ex | aten::mul
        cpu  aten::_linalg_solve_ex 0-60 | aten::linalg_lu_factor_ex 5-55 | aten::mul 70-90
        """
    ),
]
