"""A dense matmul with a matrix that is nearly all zeros.

Neighbours in a graph as a table of all pairs, blocks on a diagonal, shifts, rotations or differences written as full
matrices: each zero is multiplied all the same.

Ignore when
    on a GPU with Tensor Cores the matrix is small: its products are quicker than what takes their place.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT28",
    Cause.ZEROS_IN_OPERAND,
    says="A matrix of which {share} is zero is multiplied {times} a step",
    fixes={
        "": (
            Fix(
                "Keep only what is not zero, as a sparse matrix, or sum over the edges of a graph (`index_add_`).",
                after="graph = graph.to_sparse_csr()  # once, or of each batch as it is made\nnear = graph @ states",
                safety=Safety.ROUNDING,
                link="https://docs.pytorch.org/docs/stable/sparse.html",
            ),
        ),
        "batched": (
            Fix(
                "Write out the few sums and products that the matrices stand for.",
                after="first, second = rows.chunk(2, -1)\n"
                "turned = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)",
                safety=Safety.ROUNDING,
                link="https://arxiv.org/abs/2104.09864",
            ),
        ),
    },
    # 57 to 14 times as much for each element forth and back with CSR on one core of a Xeon (torch 2.13; 512 rows by 64
    # columns, 2,048 by 256), 51 in a graph net of 1,500 nodes; a few sums and products less. Hardly anything was left
    # of matrices for each position in a planted case.
    slower={"": (57, 40, 5), "batched": (30, 5, 0)},
    confidence=Confidence(Level.MEDIUM, "how fast sparse products are depends on the machine"),
    basis=Basis.RULE_OF_THUMB,
)

EXAMPLES = [
    Fires(  # of 60 ms 0.57 to 0.05 are left
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm sparse 990 | aten::mul
        cpu  aten::mm 0-60 | aten::mul 70-90
        """,
        saving_ms=(25.8, 57),
    ),
    Silent(  # half of it is zero, as of a triangle
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::mm sparse 500 | aten::mul
        cpu  aten::mm 0-60 | aten::mul 70-90
        """
    ),
]
