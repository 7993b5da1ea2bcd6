"""Backward passes go through the same graph again.

`backward(retain_graph=True)` for each of several losses goes back through what they have in common once for each, and
adds up the gradients.

Why it costs
    The backward pass through the common part is computed as often as there are losses. A gradient of their sum is the
    sum of their gradients, and takes one pass.

How to fix
    Add up the losses, and call `backward()` once.

Ignore when
    gradients of single losses are needed, as to project or weight them.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
"""

from diagnose.facts.autograd.backward import VainNodes
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such passes (our choice)
LEFT = Between(0.5, 0.1, 0.0)  # of the time: in a planted case 0.0 to 0.4 stayed, as gradients are still added up
ONCE = Fix(
    "Go back once, from the sum of the losses.", before="for loss in losses: loss.backward(retain_graph=True)",
    after="sum(losses).backward()", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html",
)  # fmt: skip


@rule("LB09")
def gone_through_again(repeated_backward: VainNodes, steps: Steps) -> Verdicts:
    again = repeated_backward
    longest = again.work.longest_ns
    if longest < WORTH_SHARE * steps.mean_ns or again.steps_seen < OFTEN * steps.count:
        yield Clean(f"{percent(longest / max(steps.mean_ns, 1))} of the step goes back through a graph once more")
        return
    on_device = f", {ms(again.work.device_ns)} of GPU time" * (again.work.device_ns > 0)
    yield Finding(
        evidence=(
            Evidence(
                f"{again.nodes} nodes a step had been run by an earlier backward pass, and add to the same gradients:"
                f" {ms(again.work.host_ns)} of host time{on_device}.",
                longest, "ns",
            ),
        ),
        edits=(Shorten(again.work.ids, LEFT), Shorten(again.work.work_ids, LEFT)),
        fixes=(ONCE,),
        confidence=Confidence(Level.MEDIUM, "whether the script takes gradients of single losses is not recorded"),
        basis=Basis.RULE_OF_THUMB, site=again.site,
    )  # fmt: skip


EXAMPLES = [
    Fires(  # two losses; the backward pass through the common trunk takes 30 of 100 ms each time
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::ones_like 1-2 | aten::ones_like 50-51 | "Optimizer.step#SGD.step" 90-99
        cpu  "autograd::engine::evaluate_function: AddBackward0" 3-4 sequence=7 "Fwd thread id"=1 in 0
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-35 sequence=5 "Fwd thread id"=1 in 0
        cpu  "autograd::engine::evaluate_function: MmBackward0" 52-82 sequence=5 "Fwd thread id"=1 in 0
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-35 sequence=15 "Fwd thread id"=1 in 1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 52-82 sequence=15 "Fwd thread id"=1 in 1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-35 sequence=25 "Fwd thread id"=1 in 2
        cpu  "autograd::engine::evaluate_function: MmBackward0" 52-82 sequence=25 "Fwd thread id"=1 in 2
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-35 sequence=35 "Fwd thread id"=1 in 3
        cpu  "autograd::engine::evaluate_function: MmBackward0" 52-82 sequence=35 "Fwd thread id"=1 in 3
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 35-36 x2 every 47
        """
    ),
    Silent(  # the same, of two graphs
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::ones_like 1-2 | aten::ones_like 50-51 | "Optimizer.step#SGD.step" 90-99
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-35 sequence=5 "Fwd thread id"=1 in 0
        cpu  "autograd::engine::evaluate_function: MmBackward0" 52-82 sequence=6 "Fwd thread id"=1 in 0
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 35-36 x2 every 47
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="backward passes"),
]
