"""Steps get longer from one to the next.

Each step does more than the one before: its backward pass goes through the graphs of earlier steps again, or it works
through something that the training keeps adding to.

Why it costs
    What is added stays: the time of the whole run grows with the square of its steps, and memory grows until it is
    full.

How to fix
    Cut what is carried from step to step off its graph: `hidden = hidden.detach()`, `total += loss.item()`. Keep lists,
    queues and tables that grow at a fixed size.

Ignore when
    steps are meant to do more and more, as where sequences get longer by plan.

Sources
    https://docs.pytorch.org/docs/stable/notes/faq.html
    https://github.com/pytorch/pytorch/issues/2769
"""

from diagnose.facts.run.growth import Grows, Growth, Kept
from diagnose.rulekit.vocabulary import *

AGAIN = 0.5  # of what grew since the run began, that is left at low estimate (our choice)
DETACH = Fix(
    "Cut what one step hands to the next off its graph.",
    before="output, hidden = model(x, hidden)\ntotal = total + loss",
    after="output, hidden = model(x, hidden.detach())  # of a tuple each\ntotal = total + loss.detach()",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/notes/faq.html",
)
BOUND = Fix(
    "Keep what this works through at a fixed size, or do it once for what is new.",
    effort=2,
    safety=Safety.NEEDS_JUDGEMENT,
)


@rule("PA05")
def growing_steps(growth: Growth, steps: Steps) -> Verdicts:
    rises = [
        f"{count.value} rise from {one.first:,.0f} to {one.last:,.0f}, {one.each:,.3g} a step"
        for count, one in growth.counts.items()
    ]
    if growth.time is not None:
        one = growth.time
        rises.append(f"steps take {ms(round(one.first))} to {ms(round(one.last))}, {ms(round(one.each))} more each")
    if growth.kept is not None:
        yield _graph(growth.kept, rises)
    elif growth.grows is not None:
        yield _longer(growth.grows, growth.before, steps, rises)
    elif not rises:
        yield Clean("neither what steps do nor what they take rises from step to step")
    if rises:
        yield Caution(
            f"steps are not steady: {'; '.join(rises)}", "Figures are of these steps. Later ones take longer."
        )


def _graph(kept: Kept, rises: list[str]) -> Finding:
    count, nodes, (least, most) = kept.count, kept.nodes, kept.forward
    forward = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    made = f" `{kept.op.removeprefix('aten::')}` made what the last step was handed." * bool(kept.op)
    ns = kept.work.longest_ns
    return Finding(
        title="The backward pass goes through graphs of earlier steps",
        evidence=(
            Evidence(f"Nodes of earlier steps take {ms(ns)} of a step, and more in each.", ns, "ns"),
            Evidence(
                f"A backward pass runs {nodes.first:,.0f} nodes, then {nodes.last:,.0f}; {count.last:,.0f} of these are"
                f" of steps before the last. The forward pass has {forward} ops.{made}",
                count.each,
            ),
            *(Evidence(f"In each recorded step {rise}.") for rise in rises),
        ),
        edits=(Remove(kept.work.ids), Remove(kept.work.work_ids)),
        fixes=(DETACH,),
        confidence=Confidence(Level.HIGH, "the nodes' numbers tell in which step each was made"),
        site=kept.site,
    )


def _longer(grows: Grows, before: int, steps: Steps, rises: list[str]) -> Finding:
    """What it took when the run began is not known: at the rate of now, this is what was left of it."""
    mean_ns = max((grows.ns.first + grows.ns.last) / 2, 1.0)
    left = max(1 - grows.ns.each * (before + steps.recorded / 2) / mean_ns, 0.0)
    what = f"`{grows.name.removeprefix('aten::')}`" if grows.name else "Python between ops"
    rate = f"{what} takes {ms(round(grows.ns.first))}, then {ms(round(grows.ns.last))}: {ms(round(grows.ns.each))} more"
    return Finding(
        evidence=(
            Evidence(f"{rate} in each step.", grows.ns.each, "ns"),
            *(Evidence(f"In each recorded step {rise}.") for rise in rises),
        ),
        edits=(
            Shorten(
                grows.ids if len(grows.ids) else Times(grows.track, grows.times),
                Between(1 - AGAIN * (1 - left), left, left),
            ),
        ),
        fixes=(BOUND,),
        confidence=Confidence(Level.LOW, "since when it grows, and what it works through, is not recorded"),
        site=grows.site,
        basis=Basis.RULE_OF_THUMB,
        host_bound=not grows.name,
    )


EXAMPLES = [
    Fires(  # in step n the nodes of step n and of all before it: in steps 1 to 3 those of others take 5, 10, 15 ms
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-1 sequence=0 in 0 | aten::mm 0-1 sequence=1 in 1 | aten::mm 0-1 sequence=2 in 2
        cpu  aten::mm 0-1 sequence=3 in 3
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=0 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 10-15 sequence=1 "Fwd thread id"=1 not in 0
        cpu  "autograd::engine::evaluate_function: MmBackward0" 15-20 sequence=2 "Fwd thread id"=1 not in 0,1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 20-25 sequence=3 "Fwd thread id"=1 in 3
        """,
        saving_ms=(10, 18.1),  # and more, as what is left gets faster
    ),
    Silent(  # the node of one step before, as where a step ends between forward and backward pass
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-1 sequence=1 in 0 | aten::mm 0-1 sequence=2 in 1 | aten::mm 0-1 sequence=3 in 2
        cpu  aten::mm 0-1 sequence=4 in 3
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=0 in 0 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=1 in 1 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=2 in 2 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=3 in 3 "Fwd thread id"=1
        """
    ),
    Silent(
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-50
        """
    ),
    CannotTell("2 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-50", because="active"),
]
