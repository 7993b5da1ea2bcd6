"""Rows are computed that change nothing in the loss.

A layer takes all rows, and a mask or an index leaves most of them out behind it: all nodes of a graph are computed and
the loss takes a few, every expert takes every word and a gate makes most of its results zero, padding goes along.

Why it costs
    Gradients of these rows are zero, forth and back the work on them is for nothing.

How to fix
    Pick the rows before the layer, and put the results where they belong: `layer(states[chosen])`.

Ignore when
    the results of the other rows are used for something that is not learnt from, or if running statistics of a norm
    depend on them.

Sources
    https://pytorch-geometric.readthedocs.io/en/latest/advanced/hgam.html
    https://arxiv.org/abs/2211.15841
"""

from diagnose.facts.values.idle_rows import IdleRows
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such ops (our choice)
MOST_SHOWN = 4  # names of ops in the evidence
# Of the time for idle rows this is left, as picking the others costs time, and fewer rows take more time each: 0.3 of
# eight experts' of which each row needs two, 0.3 of a last layer's of which one state in 64 is used, 0.6 of a graph
# net's that looks up its nodes first (torch 2.13, one core of a Xeon). On a GPU it waits for their number.
STILL = Between(0.7, 0.35, 0.0)
PICK = Fix(
    "Pick the rows that count before the layers that compute them.",
    before="loss = criterion(layer(states)[chosen], targets)",
    after="loss = criterion(layer(states[chosen]), targets)", safety=Safety.NEEDS_JUDGEMENT,
    link="https://pytorch-geometric.readthedocs.io/en/latest/advanced/hgam.html",
)  # fmt: skip

GATED = Fix(
    "Or give each expert only the rows that its gate lets through.",
    before="out = out + expert(rows) * gate[:, k, None]",
    after="mine = gate[:, k].nonzero().squeeze(1)\n"
    "out = out.index_add(0, mine, expert(rows[mine]) * gate[mine, k, None])",
    safety=Safety.NEEDS_JUDGEMENT, link="https://arxiv.org/abs/2211.15841",
)  # fmt: skip


@rule("AT27")
def rows_for_nothing(idle_rows: tuple[IdleRows, ...], steps: Steps) -> Verdicts:
    often = [one for one in idle_rows if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if one.idle_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.idle_ns for one in often), default=0)
        yield Clean(
            f"layers take {percent(most / max(steps.mean_ns, 1))} of the step at most for rows that do not count"
        )
    for one in large:
        names = ", ".join(one.ops[:MOST_SHOWN]) + ", ..." * (len(one.ops) > MOST_SHOWN)
        share = one.percent / 100
        yield Finding(
            evidence=(
                Evidence(
                    f"{names}: {percent(share)} of the rows got a gradient of zero, whatever was computed for them."
                    f" With the backward pass it takes {ms(one.work.longest_ns)} a step, of which {ms(one.idle_ns)} are"
                    " for such rows.",
                    one.idle_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, STILL.of_share(share)),),
            fixes=(PICK, GATED),
            confidence=Confidence(Level.MEDIUM, "one step was looked at; in others it may be more or less"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="diagnose profile"),
]
