"""Rows are computed that receive no gradient.

A layer computes all rows, and a later mask or index drops most of them. A graph net computes all nodes, but the loss
uses few. Every expert of a mixture processes every token. Padding tokens are computed.

Ignore when
    the other rows are used without a gradient, or running statistics of a norm depend on them.
"""

from diagnose.rulekit.vocabulary import *

RULE = wasted(
    "AT27",
    Cause.ROWS_WITHOUT_GRADIENT,
    says="{share} of the rows that {ops} compute got a gradient of zero",
    fixes=(
        Fix(
            "Pick the rows that count before the layers that compute them.",
            before="loss = criterion(layer(states)[chosen], targets)",
            after="loss = criterion(layer(states[chosen]), targets)",
            safety=Safety.NEEDS_JUDGEMENT,
            link="https://pytorch-geometric.readthedocs.io/en/latest/advanced/hgam.html",
        ),
        Fix(
            "Or give each expert only the rows that its gate lets through.",
            before="out = out + expert(rows) * gate[:, k, None]",
            after="mine = gate[:, k].nonzero().squeeze(1)\n"
            "out = out.index_add(0, mine, expert(rows[mine]) * gate[mine, k, None])",
            safety=Safety.NEEDS_JUDGEMENT,
            link="https://arxiv.org/abs/2211.15841",
        ),
    ),
    # Picking the others costs time, and fewer rows take more time each: 0.3 of eight experts' of which each row needs
    # two, 0.3 of a last layer's of which one state in 64 is used, 0.6 of a graph net's that looks up its nodes first
    # (torch 2.13, one core of a Xeon). On a GPU it waits for their number.
    left=Between(0.7, 0.35, 0.0),
    confidence=Confidence(Level.MEDIUM, "one step was looked at; in others it may be more or less"),
    basis=Basis.RULE_OF_THUMB,
)

EXAMPLES = [
    Fires(  # of 60 ms three quarters are for nothing
        """
        1 step of 100
        2 threads, 4 cores
        values aten::addmm | aten::mul takes 0 | aten::mul takes - back masked 75 | aten::mm takes 2 back idle 75
        cpu  aten::addmm 0-20 sequence=5 | aten::mul 20-21 sequence=6
        cpu  "autograd::engine::evaluate_function: MulBackward0" 30-31 sequence=6 "Fwd thread id"=1
        cpu  aten::mul 30-31
        cpu  "autograd::engine::evaluate_function: AddmmBackward0" 40-80 sequence=5 "Fwd thread id"=1
        cpu  aten::mm 41-79
        """,
        saving_ms=(13.5, 59.5),
    ),
    Silent(  # what is computed tells which rows count
        """
        1 step of 100
        2 threads, 4 cores
        values aten::addmm | aten::mul takes 0 | aten::mul takes 0 back masked 75 | aten::mm takes 2 back idle 75
        cpu  aten::addmm 0-20 sequence=5 | aten::mul 20-21 sequence=6
        cpu  "autograd::engine::evaluate_function: MulBackward0" 30-31 sequence=6 "Fwd thread id"=1
        cpu  aten::mul 30-31
        cpu  "autograd::engine::evaluate_function: AddmmBackward0" 40-80 sequence=5 "Fwd thread id"=1
        cpu  aten::mm 41-79
        """
    ),
]
