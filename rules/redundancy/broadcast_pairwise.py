"""Pairwise sums are computed by broadcasting.

`(a[:, None] - b[None]).square().sum(-1)` and `(a[:, None] * b[None]).sum(-1)` write a tensor of rows x rows x columns,
read it again for each op, and once more for each in the backward pass. A product of matrices gives the same sums and
writes rows x rows only.

Ignore when
    rows are so alike that the difference of large lengths loses the digits that matter.
"""

from math import prod

from diagnose.rulekit.vocabulary import *

LEAST = 100_000  # elements of the large tensor: of smaller ones most is a launch or a call each way (our choice)
LARGER = 8  # times as many elements as its larger input has (our choice)
PRODUCT = Fix(
    "Multiply matrices instead.",
    before="(a[:, None] * b[None]).sum(-1)",
    after="a @ b.T",
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.matmul.html",
)
LENGTHS = Fix(
    "Use squared lengths and one product of matrices.",
    before="(a[:, None] - b[None]).square().sum(-1)",
    after="(a.square().sum(-1)[:, None] + b.square().sum(-1) - 2 * a @ b.T).clamp(min=0)",
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.cdist.html",
)


def _of_differences(one: Found) -> bool:
    return bool(one.calls(0)[0].name == "sub")


RULE = rewrite(
    "AT06",
    "summing over pairs after broadcasting",
    (Op("sub", ("*x", "*y"), made="*r d"), Op("square|pow|mul", ("*r d",)), Op("sum|mean", ("*r d",))),
    (Op("sub", ("*x", "*y"), made="*r d"), Op("norm|linalg_vector_norm", ("*r d",))),
    (Op("mul", ("*x", "*y"), made="*r d"), Op("sum|mean", ("*r d",))),
    where=lambda one: (
        len(one.shape("r")) > 1
        and prod(one.shape("r")) * one.d >= max(LEAST, LARGER * max(prod(one.shape("x")), prod(one.shape("y"))))
    ),
    says=lambda one: (
        f"{'Squares of differences' if _of_differences(one) else 'Products'} of all pairs of rows,"
        f" {one.sizes('r')} x {one.d:,} elements, are written to memory and summed again"
    ),
    left=Between(0.5, 0.2, 0.05),  # a product of matrices moves d times fewer bytes (our choice)
    any_size=True,
    fixes=lambda one: (LENGTHS if _of_differences(one) else PRODUCT,),
    why="the shapes are recorded, and what is done with them",
    level=Level.HIGH,
)

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
]
