"""Ops are recorded for a backward pass that never comes.

Gradients are enabled while nothing needs them: in validation, in a teacher or a generator that is not trained just
then, or for metrics. Autograd builds a graph, and keeps the inputs of each op for it.

Why it costs
    A node for each op takes host time, and what is kept takes memory that is then not reused: on a CPU each op writes
    to memory that no cache holds yet.

How to fix
    Run what needs no gradients under `torch.inference_mode()`, or `torch.no_grad()` if a result is used in training.
    `model.eval()` does not do that.

Ignore when
    the backward pass comes later, outside of the recording.

Sources
    https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
"""

from diagnose.facts.autograd.unused_graphs import UnusedGraphs
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.05  # of the step in such ops (our choice)
OFTEN = 0.5  # of the steps with such ops (our choice)
LEFT = Between(0.95, 0.8, 0.6)  # of their host time; validation on a CPU kept 0.4 to 0.8 in planted cases
LEFT_OF_SAME = Between(0.95, 0.8, 0.0)  # the same if they may be the training's, once more
NO_GRAD = Fix(
    "Run it without recording for gradients.", before="loss = evaluate(model, batch)",
    after="with torch.inference_mode():\n    loss = evaluate(model, batch)", safety=Safety.SAME_NUMBERS,
    link="https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html",
)  # fmt: skip
REUSE = Fix(
    "If it is the same model on the same batch: use what the training's forward pass has found.",
    before="hits = model(batch).argmax(1) == labels", after="hits = logits.detach().argmax(1) == labels",
    safety=Safety.NEEDS_JUDGEMENT,
)  # fmt: skip


@rule("LB05")
def recorded_in_vain(unused_graphs: UnusedGraphs, steps: Steps) -> Verdicts:
    share = unused_graphs.ns / max(steps.mean_ns, 1)
    if share < WORTH_SHARE or unused_graphs.steps_seen < OFTEN * steps.count:
        yield Clean(f"{percent(share)} of the step in ops recorded for a backward pass that does not come")
        return
    same = unused_graphs.as_in_training
    like = ": the same as in training, on equal shapes" * same
    yield Finding(
        evidence=(
            Evidence(
                f"{unused_graphs.calls} ops a step, {ms(unused_graphs.ns)} of host time, are recorded for a backward"
                f" pass, and none of those that were seen uses them{like}.",
                unused_graphs.ns, "ns",
            ),
        ),
        edits=(Shorten(unused_graphs.ids, LEFT_OF_SAME if same else LEFT),),
        fixes=(NO_GRAD, REUSE) if same else (NO_GRAD,),
        confidence=Confidence(Level.MEDIUM, "what recording costs is taken from other trainings"),
        basis=Basis.RULE_OF_THUMB, site=unused_graphs.site, host_bound=True,
    )  # fmt: skip


EXAMPLES = [
    Fires(  # of 60 ms of validation 20 % would go
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-10 sequence=1 in 0 | aten::mm 0-10 sequence=4 in 1 | aten::mm 0-10 sequence=7 in 2
        cpu  aten::mm 0-10 sequence=10 in 3 | aten::mm 30-60 sequence=2 in 0 | aten::mm 60-90 sequence=3 in 0
        cpu  aten::mm 30-60 sequence=5 in 1 | aten::mm 60-90 sequence=6 in 1 | aten::mm 30-60 sequence=8 in 2
        cpu  aten::mm 60-90 sequence=9 in 2 | aten::mm 30-60 sequence=11 in 3
        cpu  "autograd::engine::evaluate_function: MmBackward0" 11-29 sequence=1 in 0
        cpu  "autograd::engine::evaluate_function: MmBackward0" 11-29 sequence=4 in 1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 11-29 sequence=7 in 2
        cpu  "autograd::engine::evaluate_function: MmBackward0" 11-29 sequence=10 in 3
        """
    ),
    Silent(  # validation without gradients
        """
        2 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-10 sequence=1 in 0 | aten::mm 0-10 sequence=2 in 1 | aten::mm 30-90
        cpu  "autograd::engine::evaluate_function: MmBackward0" 11-29 sequence=1 in 0
        cpu  "autograd::engine::evaluate_function: MmBackward0" 11-29 sequence=2 in 1
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="backward passes"),
]
