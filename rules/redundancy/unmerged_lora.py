"""LoRA weights are multiplied out in every step.

`linear(words, weight + scale * up @ down)` makes a full matrix of two thin ones, adds it to a weight that does not
learn, and needs the gradient of that whole sum in the backward pass, only to make two thin gradients of it. Through the
thin matrices words take r (in + out) products each, in place of in times out.

Ignore when
    there are far fewer parameters than words, and the merged weight is used many times before it changes.
"""

from math import prod

from diagnose.rulekit.vocabulary import *

THIN = 8  # times its rank an adapter's matrices are longer, at least (our choice)
MERGING = 0.1  # of the time that it takes, for what is left of it in Python (our choice)
NOT_EXACT = Between(
    1.35, 1.1, 0.7
)  # times what is left and comes instead (six sizes on one core of a Xeon, torch 2.13)


def _left(one: Found) -> Between:
    """Of the layers' backward pass what they pass on stays, of two products one, and this comes instead:

    a way forth and two back through thin matrices, and sums as large as results, with twice the memory that a sum
    touches.
    """
    _, summed, layer = one.parts
    words = one.shape("x")
    thin = layer.longest_ns * one.rank * (one.out + one.width) / (one.out * one.width)
    added = summed.longest_ns * prod(words) / max(words[-1], 1) ** 2
    left = 1 - 1 / max(one.ops_inside(one.backs[2], "mm"), 1)
    left += 3 * (thin + 2 * added) / max(one.backs[2].longest_ns, 1)
    return Between(*(min(NOT_EXACT.at(level) * left, 1.0) for level in Estimate))


MERGED = (
    Op("matmul|mm", ("out rank", "rank width"), left=MERGING, back=MERGING),
    Op("add", ("out width", "out width"), within=4, left=MERGING, back=MERGING),
)
RULE = rewrite(
    "AT32",
    "multiplying adapters out",
    (*MERGED, Op("linear|matmul|mm", ("*x", "out width"), within=4, left=1, back=_left)),
    (*MERGED, Op("linear|matmul|mm", ("*x", "width out"), within=4, left=1, back=_left)),
    where=lambda one: 0 < one.rank * THIN <= min(one.out, one.width) and not one.learns((one.out, one.width)),
    says="Adapters of rank {rank} are made full matrices of {out:,} by {width:,} and added to weights that do not"
    " learn, {times} times a step; the backward pass of the layers that take the sums makes gradients as large",
    left=1,
    fixes=(
        Fix(
            "Send words through the weight and the thin matrices, and add up the results.",
            before="made = linear(words, weight + scale * up @ down)",
            after="made = linear(words, weight) + scale * linear(linear(words, down), up)",
            safety=Safety.ROUNDING,
            link="https://arxiv.org/abs/2106.09685",
        ),
    ),
    why="told by shapes; that the weight does not learn, by its gradient",
)

EXAMPLES = [
    Fires(  # of 15 ms that add the adapter 1.5, and of 30 of the backward pass 15; 3.4 come instead, 0.7 to 1.35 times
        """
        1 step of 100
        2 threads, 4 cores
        cpu  aten::matmul 0-10 shapes=[[768,8],[8,768]] sequence=3
        cpu  aten::add 10-15 shapes=[[768,768],[768,768],[]] sequence=4
        cpu  aten::linear 15-30 shapes=[[64,768],[768,768],[]] sequence=5
        cpu  "autograd::engine::evaluate_function: MmBackward0" 40-70 sequence=5 "Fwd thread id"=1
        cpu  aten::mm 40-55 shapes=[[768,64],[64,768]] | aten::mm 55-70 shapes=[[64,768],[768,768]]
        """,
        saving_ms=(19.06, 44.5),
    ),
    Silent(  # the weight learns as well
        """
        1 step of 100
        2 threads, 4 cores
        cpu  aten::matmul 0-10 shapes=[[768,8],[8,768]] sequence=3
        cpu  aten::add 10-15 shapes=[[768,768],[768,768],[]] sequence=4
        cpu  aten::linear 15-30 shapes=[[64,768],[768,768],[]] sequence=5
        cpu  "autograd::engine::evaluate_function: MmBackward0" 40-70 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 70-75
        cpu  torch::autograd::AccumulateGrad 70-75 shapes=[[768,768]]
        """
    ),
]
