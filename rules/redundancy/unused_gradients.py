"""Backward passes compute gradients that no optimizer uses.

A backward pass goes on to every weight that asks for a gradient. Weights that only the optimizer was not given still
ask, as do those of a net whose output another one is trained on; their gradients are kept, or cleared unused.

Why it costs
    A layer's backward pass takes about twice as long as its forward pass, and what it needs takes memory until then.

How to fix
    Before training, switch off gradients of what is not trained: `net.requires_grad_(False)`. Where one net learns
    from the output of another that this pass does not train, as a critic does, cut the graph: `output.detach()`.

Ignore when
    the script itself uses these gradients: to log them, in a norm that limits the others, or for an attack.

Sources
    https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad
"""

from diagnose.facts.values.unused_gradients import UnusedGradients
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such nodes (our choice)
LEAST = 2  # gradients a step: a script may well use a single one, of its input, if it was not seen not to (our choice)
LINK = "https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad"
FREEZE = Fix(
    "Ask for gradients of what is trained only.", before="optimizer = AdamW(model.head.parameters())",
    after="model.requires_grad_(False)\nmodel.head.requires_grad_(True)\noptimizer = AdamW(model.head.parameters())",
    safety=Safety.SAME_NUMBERS, link=LINK,
)  # fmt: skip
CUT = Fix(
    "Cut the graph before the net that this pass does not train.", before="loss = critic(generator(noise)).mean()",
    after="loss = critic(generator(noise).detach()).mean()", safety=Safety.SAME_NUMBERS, link=LINK,
)  # fmt: skip

DATA = Fix(
    "Ask for no gradients of data.", before="features = torch.tensor(table, requires_grad=True)",
    after="features = torch.tensor(table)", safety=Safety.NEEDS_JUDGEMENT, link=LINK,
)  # fmt: skip


@rule("LB08")
def gradients_in_vain(unused_gradients: UnusedGradients, steps: Steps) -> Verdicts:
    vain = unused_gradients.vain
    longest = vain.work.longest_ns
    single = vain.gradients < LEAST
    rare = (single and not unused_gradients.unread) or vain.steps_seen < OFTEN * steps.count
    if rare or longest < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"{percent(longest / max(steps.mean_ns, 1))} of the step goes into gradients that nobody uses")
        return
    verb = "is" if single else "are"
    fate = f"{verb} cleared before one does" if unused_gradients.cleared else f"{verb} never used"
    on_device = f", {ms(vain.work.device_ns)} of GPU time" * (vain.work.device_ns > 0)
    yield Finding(
        evidence=(
            Evidence(
                f"After the last gradient that an optimizer uses, backward passes run {vain.nodes} more nodes a step,"
                f" for {'a gradient' if single else f'{vain.gradients} gradients'} that {fate}:"
                f" {ms(vain.work.host_ns)} of host time{on_device}.",
                longest, "ns",
            ),
        ),
        edits=(Remove(vain.work.ids),),
        fixes=(DATA,) if single else (CUT, FREEZE) if unused_gradients.cleared else (FREEZE, CUT),
        confidence=(
            Confidence(Level.HIGH, "which gradients the optimizers read, and when they clear them, is recorded")
            if unused_gradients.cleared
            else Confidence(Level.MEDIUM, "an optimizer that makes no step in this recording might use them")
        ),
        site=vain.site,
    )  # fmt: skip


EXAMPLES = [
    Fires(  # only the head, of 4 x 8, is trained; the backward pass through the trunk takes 40 of 100 ms
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-20 | aten::ones_like 21-22 | "Optimizer.step#SGD.step" 90-99
        cpu  aten::add_ 91-98 shapes=[[4,8],[4,8],[]]
        cpu  "autograd::engine::evaluate_function: MmBackward0" 23-30 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 31-32
        cpu  torch::autograd::AccumulateGrad 31-32 shapes=[[4,8]]
        cpu  "autograd::engine::evaluate_function: MmBackward0" 33-63 sequence=4 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 64-69 x2 every 5
        cpu  torch::autograd::AccumulateGrad 64-69 shapes=[[64,8]] x2 every 5
        """
    ),
    Silent(  # all is trained
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-20 | aten::ones_like 21-22 | "Optimizer.step#SGD.step" 90-99
        cpu  aten::add_ 91-94 shapes=[[4,8],[4,8],[]] | aten::add_ 95-98 shapes=[[64,8],[64,8],[]]
        cpu  "autograd::engine::evaluate_function: MmBackward0" 23-30 sequence=5 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 31-32 | aten::mm 24-29
        cpu  torch::autograd::AccumulateGrad 31-32 shapes=[[64,8]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="backward passes"),
]
