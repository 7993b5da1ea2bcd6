"""Dense matmul with a matrix of nearly all zeros.

A graph's adjacency matrix, blocks on a diagonal, shifts, rotations or differences as full matrices: every zero is
multiplied.
Ignore when
    the matrix is small and the GPU has Tensor Cores: its dense products are faster.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT28",
    Cause.ZEROS_IN_OPERAND,
    says="A matrix with {share} zeros is multiplied {times} per step",
    fixes={
        "": (
            Fix(
                "Use a sparse matrix, or sum over the graph's edges with `index_add_`.",
                after="graph = graph.to_sparse_csr()  # once, or once per batch\nnear = graph @ states",
                safety=Safety.ROUNDING,
                link="https://docs.pytorch.org/docs/stable/sparse.html",
            ),
        ),
        "batched": (
            Fix(
                "Replace the matrices by the few sums and products they stand for.",
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
    confidence=Confidence(Level.MEDIUM, "the speed of sparse matmuls depends on the machine"),
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
    # half of it is zero, as of a triangle
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        values aten::mm sparse 500 | aten::mul
        cpu  aten::mm 0-60 | aten::mul 70-90
    """),
]
