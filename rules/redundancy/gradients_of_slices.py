"""Each slice's backward pass fills a full-size gradient.

A loop over `x[:, t]`, or over windows `maps[n, :, y:y + 5, x:x + 5]`, runs one backward op per slice. One op that
takes all slices has one gradient.

Why it costs
    For each slice, the backward pass fills zeros as large as the whole tensor, and inserts the slice's gradient. Then
    autograd adds up all of these tensors.
How to fix
    Split the tensor once, before the loop. Gather overlapping slices with one index.
Ignore when
    slices are few, or the tensor needs no gradient.
Sources
    https://docs.pytorch.org/docs/stable/generated/torch.unbind.html
"""

from diagnose.facts.run.timed_steps import Slowdown
from diagnose.facts.values.wasted_work import Slices
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step that filling takes (our choice)
LEFT = 0.1  # of the time, likely: the pieces' gradients are still copied (our choice)
FIXES = (
    Fix(
        "Split the tensor once, before the loop.",
        after="for moment in x.unbind(1): state = cell(moment, state)",
        safety=Safety.ROUNDING,
        link="https://docs.pytorch.org/docs/stable/generated/torch.unbind.html",
    ),
    Fix(
        "Gather overlapping slices with one index.",
        after="x[number[:, None], :, first[:, None] + torch.arange(5)]  # (pieces, 5, channels)",
        safety=Safety.ROUNDING,
    ),
)


@rule("AT12")
def gradients_of_slices(slices: tuple[Slices, ...], steps: Steps, slowdown: Slowdown | None = None) -> Verdicts:
    step_ns = max(steps.mean_ns, 1)
    found = [one for one in slices if one.back.longest_ns >= WORTH_SHARE * step_ns]
    if not found:
        most_ns = max((one.back.longest_ns for one in slices), default=0)
        yield Clean(f"filling gradients of slices takes at most {percent(most_ns / step_ns)} of the step")
    for one in found:
        sizes, left = " x ".join(f"{size:,}" for size in one.whole), _left(one, slowdown)
        ns, cut = one.back.longest_ns, f"{one.in_a_row} slices in a row of a tensor of {sizes}"
        yield Finding(
            evidence=(Evidence(f"{cut}: their backward pass takes {ms(ns)}/step.", ns, "ns"),),
            edits=(Shorten(one.back.ids, left), Shorten(one.back.work_ids, left)),
            fixes=FIXES,
            confidence=Confidence(Level.MEDIUM, "slices are matched to their tensor by shapes"),
            basis=Basis.RULE_OF_THUMB,
            site=one.site,
        )


def _left(one: Slices, slowdown: Slowdown | None) -> Between:
    """On a CPU, recording slows them down more than the rest: 4 to 7 times where the step took 2 to 3 times as long."""
    slower = 1.0 if one.back.device_ns or slowdown is None else max(slowdown.ratio or 1.0, 1.0)
    return Between(1 - 0.5 / slower, 1 - (1 - LEFT) / slower, min(LEFT, 1 / one.in_a_row))


EXAMPLES = [
    Fires(  # 10 moments; the backward pass takes 3 ms each
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::select 1-1.5 x10 every 1 shapes=[[32,10,64],[],[]] sequence=1 in 0
        cpu  "autograd::engine::evaluate_function: SelectBackward0" 20-23 x10 every 4 sequence=1 "Fwd thread id"=1 in 0
        cpu  aten::select 1-1.5 x10 every 1 shapes=[[32,10,64],[],[]] sequence=2 in 1
        cpu  "autograd::engine::evaluate_function: SelectBackward0" 20-23 x10 every 4 sequence=2 "Fwd thread id"=1 in 1
        cpu  aten::select 1-1.5 x10 every 1 shapes=[[32,10,64],[],[]] sequence=3 in 2
        cpu  "autograd::engine::evaluate_function: SelectBackward0" 20-23 x10 every 4 sequence=3 "Fwd thread id"=1 in 2
        cpu  aten::select 1-1.5 x10 every 1 shapes=[[32,10,64],[],[]] sequence=4 in 3
        cpu  "autograd::engine::evaluate_function: SelectBackward0" 20-23 x10 every 4 sequence=4 "Fwd thread id"=1 in 3
        """,
        saving_ms=(15, 27),
    ),
    # four gates
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::slice 1-1.5 x4 every 1 shapes=[[32,256],[],[],[],[]] sequence=1
        cpu  "autograd::engine::evaluate_function: SliceBackward0" 20-23 x4 every 4 sequence=1 "Fwd thread id"=1
    """),
]
