"""A low-rank adapter is multiplied out for each use.

`linear(words, weight + scale * up @ down)` makes a full matrix of two thin ones, adds it to a weight that does not
learn, and needs the gradient of that whole sum in the backward pass, only to make two thin gradients of it.

Why it costs
    The gradient of the sum takes as long as the layer's way forth. Through the thin matrices words take r (in + out)
    products each, in place of in times out.

How to fix
    Send words through the weight and through the two thin matrices, and add up the results; multiply out when the
    training is over.

Ignore when
    there are far fewer parameters than words, and the merged weight is used many times before it changes.

Sources
    https://arxiv.org/abs/2106.09685
    https://github.com/microsoft/LoRA
"""

from diagnose.facts.shapes.adapters import Adapters
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with adapters (our choice)
MERGING = 0.1  # of the time that it takes, for what is left of it in Python (our choice)
NOT_EXACT = Between(1.35, 1.1, 0.7)  # times what is left and comes instead: see Adapters.apart_ns
APART = Fix(
    "Send words through the weight and the thin matrices, and add up the results.",
    before="made = linear(words, weight + scale * up @ down)",
    after="made = linear(words, weight) + scale * linear(linear(words, down), up)", safety=Safety.ROUNDING,
    link="https://arxiv.org/abs/2106.09685",
)  # fmt: skip


@rule("AT32")
def multiplied_out(adapters: tuple[Adapters, ...], steps: Steps) -> Verdicts:
    often = [one for one in adapters if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if _saved_ns(one) >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max(map(_saved_ns, often), default=0)
        yield Clean(f"adapters that are multiplied out take {percent(most / max(steps.mean_ns, 1))} of the step")
    for one in large:
        rows, columns = one.shape
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.times} adapters of rank {one.rank} are made full matrices of {rows:,} by {columns:,} in each"
                    f" step, and added to weights that do not learn: {ms(one.merging.longest_ns)} a step with the way"
                    f" back. The backward pass of the layers that take the sums makes gradients as large:"
                    f" {ms(one.back.longest_ns)}. Through the thin matrices words would take about"
                    f" {ms(one.apart_ns)}.",
                    one.now_ns, "ns",
                ),
            ),
            edits=(Shorten(one.data_ids, _left(one)),),
            fixes=(APART,),
            confidence=Confidence(Level.MEDIUM, "told by shapes; that the weight does not learn, by its gradient"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


def _left(one: Adapters) -> Between:
    """Of the time now, with what comes instead: over 1 where that is more."""
    share = (MERGING * one.merging.longest_ns + one.still_ns + one.apart_ns) / max(one.now_ns, 1)
    return Between(share * NOT_EXACT.low, share * NOT_EXACT.likely, share * NOT_EXACT.high)


def _saved_ns(one: Adapters) -> float:
    return one.now_ns * (1 - _left(one).likely)


EXAMPLES = [
    Fires(  # of 15 ms that add the adapter 1.5, and of 30 ms of the backward pass 15 are left; 3.4 ms come instead
        """
        1 step of 100
        2 threads, 4 cores
        cpu  aten::matmul 0-10 shapes=[[768,8],[8,768]] sequence=3
        cpu  aten::add 10-15 shapes=[[768,768],[768,768],[]] sequence=4
        cpu  aten::linear 15-30 shapes=[[64,768],[768,768],[]] sequence=5
        cpu  "autograd::engine::evaluate_function: MmBackward0" 40-70 sequence=5 "Fwd thread id"=1
        cpu  aten::mm 40-55 shapes=[[768,64],[64,768]] | aten::mm 55-70 shapes=[[64,768],[768,768]]
        """,
        saving_ms=(18.1, 45.4),
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
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="backward passes"),
]
