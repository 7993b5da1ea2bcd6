"""A product is with a matrix of which nearly all is zero.

Neighbours in a graph as a table of all pairs, blocks on a diagonal, shifts, rotations or differences written as full
matrices: each zero is multiplied all the same.

Why it costs
    A product of full matrices takes as long whatever is in them. Of what is zero it needs nothing.

How to fix
    Keep only what is not zero: a sparse matrix (`to_sparse_csr()`), sums over the edges of a graph (`index_add_`), or
    the few sums and products that such a matrix stands for.

Ignore when
    on a GPU with tensor cores the matrix is small: its products are quicker than what takes their place.

Sources
    https://docs.pytorch.org/docs/stable/sparse.html
    https://arxiv.org/abs/2104.09864
"""

from diagnose.facts.values.sparse_products import SparseProducts
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such products (our choice)
# Time left, in shares of elements that are not zero: 57 to 14 times as much forth and back with CSR on one core of a
# Xeon (torch 2.13; 512 rows by 64 columns, 2,048 by 256), a few sums and products less.
TIMES = (57, 40, 5)  # A graph net of 1,500 nodes came to 51.
WRITTEN = (30, 5, 0)  # Of matrices for each position: hardly anything was left of those in a planted case.
SPARSE = Fix(
    "Keep only what is not zero, as a sparse matrix.", before="near = graph @ states",
    after="graph = graph.to_sparse_csr()  # once, or of each batch as it is made\nnear = graph @ states",
    safety=Safety.ROUNDING, link="https://docs.pytorch.org/docs/stable/sparse.html",
)  # fmt: skip
WRITTEN_OUT = Fix(
    "Write out the few sums and products that the matrices stand for.",
    before='turned = torch.einsum("blhd,lde->blhe", rows, turns)',
    after="first, second = rows.chunk(2, -1)\n"
    "turned = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)",
    safety=Safety.ROUNDING, link="https://arxiv.org/abs/2104.09864",
)  # fmt: skip


@rule("AT28")
def multiplied_zeros(sparse_products: tuple[SparseProducts, ...], steps: Steps) -> Verdicts:
    often = [one for one in sparse_products if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if one.work.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.work.longest_ns for one in often), default=0)
        yield Clean(f"products with matrices of zeros take {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        filled, times = 1 - one.zeros / 1000, WRITTEN if one.batched else TIMES
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.times} products a step are with a matrix of which {percent(1 - filled)} is zero;"
                    f" {ms(one.work.longest_ns)} a step, with the backward pass.",
                    one.work.longest_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, Between(*(min(filled * each, 1.0) for each in times))),),
            fixes=(WRITTEN_OUT if one.batched else SPARSE,),
            confidence=Confidence(Level.MEDIUM, "how fast sparse products are depends on the machine"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # of 60 ms 0.57 to 0.05 are left
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm sparse 990 | aten::mul
        cpu  aten::mm 0-60 | aten::mul 70-90
        """,
        saving_ms=(25.8, 73.3),
    ),
    Silent(  # half of it is zero, as of a triangle
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm sparse 500 | aten::mul
        cpu  aten::mm 0-60 | aten::mul 70-90
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
