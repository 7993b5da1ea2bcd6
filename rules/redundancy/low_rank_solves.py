"""Matrices of low rank are solved at their full size.

The product of a tall matrix and its transpose has no higher rank than the tall one has columns. With a multiple of the
identity added, as in ridge regression, it is factored as if it had.

Why it costs
    n equations take n cubed: of 25 examples with 448 features the matrix of features is solved 5,700 times as dearly
    as that of examples.

How to fix
    `X.mT @ solve(X @ X.mT + a I, y)` is the same as `solve(X.mT @ X + a I, X.mT @ y)`. With more than a multiple of the
    identity added, Woodbury's identity says how; `torch.linalg.lstsq` and an SVD work on the tall matrix as it is.

Ignore when
    what is added to the product has no cheap inverse.

Sources
    https://arxiv.org/abs/1805.08136
    https://docs.pytorch.org/docs/stable/generated/torch.linalg.solve.html
"""

from diagnose.facts.shapes.low_rank import LowRankSolve
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
INNER = Fix(
    "Solve the smaller system: by way of the examples rather than the features.",
    before="solve(X.mT @ X + a * eye(features), X.mT @ y)", after="X.mT @ solve(X @ X.mT + a * eye(examples), y)",
    safety=Safety.ROUNDING, effort=2, link="https://arxiv.org/abs/1805.08136",
)  # fmt: skip


@rule("AT17")
def full_size_for_low_rank(low_rank_solves: tuple[LowRankSolve, ...], steps: Steps) -> Verdicts:
    large = [one for one in low_rank_solves if one.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.longest_ns for one in low_rank_solves), default=0)
        yield Clean(f"matrices of low rank take {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        smaller = one.rank / one.size
        yield Finding(
            evidence=(
                Evidence(
                    f"Matrices of {one.size:,} by {one.size:,} are factored that are products of rank {one.rank:,} at"
                    f" most: with the backward pass {ms(one.longest_ns)} a step.",
                    one.longest_ns, "ns",
                ),
            ),
            # Flops go with the rank by the size, to the power of 2 or 3; small systems have a least time.
            edits=tuple(
                Shorten(work.data_ids, Between((1 + smaller) / 2, smaller, smaller**power))
                for work, power in ((one.products, 1), (one.solves, 2))
            ),
            fixes=(INNER,),
            confidence=Confidence(Level.MEDIUM, "the rank is told by shapes; what is added is not known"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
