"""Weight decay is computed in the loss.

A sum of squares of all weights is added to the loss. Its gradient is a multiple of the weights, which an optimizer's
`weight_decay` adds as it updates them.

Why it costs
    All weights are read and squared, and their squares written and summed; the backward pass makes a gradient as large
    as the model, and adds it to the other one.

How to fix
    Take the term out of the loss, and set `weight_decay` to twice its factor: the same gradients in SGD and Adam
    (AdamW decays weights otherwise).

Ignore when
    weights are pulled elsewhere than to zero, or the term is not a plain sum of squares.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
"""

from diagnose.facts.autograd.weight_penalty import WeightPenalty
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device (our choice)
SHAPES = 2  # of weights at least: one alone may be that of something else (our choice)
LEFT = Between(0.3, 0.0, 0.0)  # of the time: the optimizer reads the weights anyway (our choice)
DECAY = Fix(
    "Let the optimizer decay the weights.",
    before="loss = loss + factor * sum(weight.square().sum() for weight in model.parameters())",
    after="optimizer = SGD(model.parameters(), lr, weight_decay=2 * factor)",
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html",
)


@rule("OP05")
def l2_in_loss(weight_penalty: WeightPenalty, steps: Steps) -> Verdicts:
    work = weight_penalty.work
    if weight_penalty.shapes < SHAPES or work.longest_ns < WORTH_SHARE * steps.mean_ns:
        share = work.longest_ns / max(steps.mean_ns, 1) * (weight_penalty.shapes >= SHAPES)
        yield Clean(f"{percent(share)} of the step goes into sums of squares of weights")
        return
    yield Finding(
        evidence=(
            Evidence(
                f"Weights of {weight_penalty.shapes} shapes are squared and summed, and gradients go back through that:"
                f" {ms(work.longest_ns)} a step.",
                work.longest_ns,
                "ns",
            ),
        ),
        edits=(Shorten(work.ids, LEFT), Shorten(work.work_ids, LEFT)),
        fixes=(DECAY,),
        confidence=Confidence(Level.MEDIUM, "that they are weights is told by their shapes"),
        basis=Basis.RULE_OF_THUMB,
        site=weight_penalty.site,
    )


EXAMPLES = [
    Fires(  # of 40 ms 28 go at least
        """
        1 steps of 100
        2 threads, 4 cores
        cpu  aten::pow 0-10 shapes=[[64,32],[]] sequence=1 | aten::sum 10-14 shapes=[[64,32],[]] sequence=2
        cpu  aten::pow 14-16 shapes=[[64],[]] sequence=3 | aten::sum 16-18 shapes=[[64],[]] sequence=4
        cpu  aten::add 18-19 sequence=5 | aten::ones_like 20-21
        cpu  "autograd::engine::evaluate_function: SumBackward0" 22-24 sequence=4 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: PowBackward0" 24-26 sequence=3 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: SumBackward0" 26-30 sequence=2 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: PowBackward0" 30-44 sequence=1 "Fwd thread id"=1
        cpu  torch::autograd::AccumulateGrad 50-51 shapes=[[64,32]]
        cpu  torch::autograd::AccumulateGrad 51-52 shapes=[[64]]
        """
    ),
    Silent(  # sizes of weights are only looked at
        """
        1 steps of 100
        2 threads, 4 cores
        cpu  aten::pow 0-10 shapes=[[64,32],[]] | aten::sum 10-14 shapes=[[64,32],[]]
        cpu  aten::pow 14-26 shapes=[[64],[]] | aten::sum 26-38 shapes=[[64],[]]
        cpu  torch::autograd::AccumulateGrad 50-51 shapes=[[64,32]]
        cpu  torch::autograd::AccumulateGrad 51-52 shapes=[[64]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
