"""Weights are made of others again at every use.

A layer whose weight is made of others (orthogonal, normalised, of low rank, cast to another type) makes it whenever it
is used: in every round of a loop, and for every batch that goes through before a backward pass.

Why it costs
    Until the optimizer's next step the weight is the same. Making it takes ops that do not get smaller with the batch,
    and each time goes back through its own.

How to fix
    With `torch.nn.utils.parametrize`: do the whole forward pass under `parametrize.cached()`. Else make the weight
    before the loop, and use it in all rounds.

Ignore when
    a weight shall differ from use to use: `spectral_norm` makes one more iteration of its estimate at each.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.parametrize.cached.html
"""

from diagnose.facts.autograd.derived_weights import DerivedWeights
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such passes (our choice)
MOST_SHOWN = 4  # names of ops in the evidence
CACHED = Fix(
    "Make each weight once for a forward pass.", before="out = model(batch)",
    after="with torch.nn.utils.parametrize.cached():\n    out = model(batch)", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.parametrize.cached.html",
)  # fmt: skip
BEFORE = Fix(
    "Without parametrizations: make it before the loop.", before="for x in rounds: h = F.linear(x, made(raw))",
    after="weight = made(raw)\nfor x in rounds: h = F.linear(x, weight)", safety=Safety.ROUNDING,
)  # fmt: skip


@rule("AT09")
def made_at_every_use(derived_weights: tuple[DerivedWeights, ...], steps: Steps) -> Verdicts:
    often = [one for one in derived_weights if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if one.repeated_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        share = percent(max((one.repeated_ns for one in often), default=0) / max(steps.mean_ns, 1))
        yield Clean(f"making weights again that had been made takes {share} of the step at most")
    for one in large:
        names = ", ".join(one.ops[:MOST_SHOWN]) + ", ..." * (len(one.ops) > MOST_SHOWN)
        left = one.weights / one.made
        keep = Between((1 + left) / 2, left, left)
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.weights} weights, at most, are made {one.made} times in a forward pass ({names}): with the"
                    f" backward pass {ms(one.work.longest_ns)} a step, of which {ms(one.repeated_ns)} repeat it.",
                    one.repeated_ns, "ns",
                ),
            ),
            edits=(Shorten(one.work.ids, keep), Shorten(one.work.work_ids, keep)),
            fixes=(CACHED, BEFORE),
            confidence=Confidence(Level.MEDIUM, "that they work on weights is told by shapes alone"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # one weight is made in each of three rounds: 10 ms, and 10 in the backward pass; 40 of 60 repeat it
        """
        1 steps of 100
        2 threads, 4 cores
        cpu  aten::linalg_qr 0-10 sequence=1 shapes=[[8,8]] | aten::linear 10-11 sequence=2 shapes=[[4,8],[8,8]]
        cpu  aten::linalg_qr 11-21 sequence=3 shapes=[[8,8]] | aten::linear 21-22 sequence=4 shapes=[[4,8],[8,8]]
        cpu  aten::linalg_qr 22-32 sequence=5 shapes=[[8,8]] | aten::linear 32-33 sequence=6 shapes=[[4,8],[8,8]]
        cpu  aten::ones_like 33-34 sequence=7 shapes=[[]]
        cpu  "autograd::engine::evaluate_function: QrBackward0" 35-45 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: QrBackward0" 46-56 sequence=3 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: QrBackward0" 57-67 sequence=1 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 67-69
        cpu  torch::autograd::AccumulateGrad 67-68 shapes=[[8,8]]
        """,
        saving_ms=(20, 61.6),
    ),
    Silent(  # three layers, each of which makes a weight of its own
        """
        1 steps of 100
        2 threads, 4 cores
        cpu  aten::linalg_qr 0-10 sequence=1 shapes=[[8,8]] | aten::linear 10-11 sequence=2 shapes=[[4,8],[8,8]]
        cpu  aten::linalg_qr 11-21 sequence=3 shapes=[[8,8]] | aten::linear 21-22 sequence=4 shapes=[[4,8],[8,8]]
        cpu  aten::ones_like 33-34 sequence=5 shapes=[[]]
        cpu  "autograd::engine::evaluate_function: QrBackward0" 35-45 sequence=3 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: QrBackward0" 57-67 sequence=1 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 45-47 x2 every 22
        cpu  torch::autograd::AccumulateGrad 45-46 x2 every 22 shapes=[[8,8]]
        """
    ),
    CannotTell("1 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
