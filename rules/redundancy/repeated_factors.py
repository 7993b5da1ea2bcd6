"""Factors of the same matrix are made again and again.

`torch.linalg.solve(matrix, sides)` makes factors of the matrix, which takes far longer than to solve with them, and
forgets them: an implicit solver, a filter or a regression that solves with the same matrix again makes them anew.

Why it costs
    Factors of a matrix of n rows take 2/3 n³ operations, to solve with them takes 2 n² for each side.

How to fix
    Make the factors once, and solve with them: `torch.linalg.lu_factor` and `torch.linalg.lu_solve`.

Ignore when
    the matrix changes in most steps, and did not in those that were looked at.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.linalg.lu_solve.html
    https://docs.pytorch.org/docs/stable/generated/torch.linalg.lu_factor.html
"""

from diagnose.facts.values.solves import RepeatedFactors
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
LEFT = Between(0.2, 0.0, 0.0)  # to solve with factors is timed by itself, as an op beside (our choice)
KEEP = Fix(
    "Make the factors once, and solve with them.", before="field = torch.linalg.solve(matrix, field)",
    after="factors = torch.linalg.lu_factor(matrix)  # once\nfield = torch.linalg.lu_solve(*factors, field)",
    safety=Safety.ROUNDING, link="https://docs.pytorch.org/docs/stable/generated/torch.linalg.lu_solve.html",
)  # fmt: skip


@rule("AT29")
def factors_made_again(repeated_factors: RepeatedFactors | None, steps: Steps) -> Verdicts:
    found = repeated_factors
    if found is None or found.work.longest_ns < WORTH_SHARE * steps.mean_ns:
        share = 0.0 if found is None else found.work.longest_ns / max(steps.mean_ns, 1)
        yield Clean(f"factors of matrices that were solved with before take {percent(share)} of the step")
        return
    often = "every step solves with the same matrix" if found.always else "this step had solved with it before"
    yield Finding(
        evidence=(
            Evidence(
                f"torch.linalg.solve made factors of a matrix {found.times} times in the step that was looked at, and"
                f" {often}: {ms(found.work.longest_ns)} a step.",
                found.work.longest_ns, "ns",
            ),
        ),
        edits=(Shorten(found.work.ids, LEFT), Shorten(found.work.work_ids, LEFT)),
        fixes=(KEEP,),
        confidence=Confidence(Level.HIGH, "all that was done with the matrix was followed, for two steps"),
        site=found.site,
    )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
