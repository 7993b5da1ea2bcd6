"""Results are gathered from all ranks in every step.

Between a step of the optimizer and the next forward pass every rank sends what it has to all others: outputs, labels,
or objects, to count or to log them.

Why it costs
    Every rank waits until all have sent, and receives as many times as much as it sends as there are ranks; objects
    are pickled, and their sizes are sent before.

How to fix
    Let every rank count its own, and sum up the counts; or gather every many steps only.

Ignore when
    what is gathered is trained on in the step that follows.

Sources
    https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather
"""

from diagnose.facts.communication.gathers import HostGathers
from diagnose.rulekit.vocabulary import *

BLOCKED_SHARE = 0.01  # of the step (our choice)
OWN = Between(0.5, 0.1, 0.02)  # of the rest: a sum of counts still takes a collective (our choice)
WAITS = Between(0.9, 0.5, 0.1)  # of the waiting for other ranks: who is always late is waited for later (our choice)
COUNT = Fix(
    "Let every rank count its own, and sum up.",
    before="dist.all_gather(outputs, output); hits = count(torch.cat(outputs), labels)",
    after="hits = count(output, own_labels); dist.all_reduce(hits)  # every 100 steps",
    safety=Safety.SAME_NUMBERS,
    link="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce",
)


@rule("CO16")
def gathered_results(host_gathers: HostGathers, steps: Steps) -> Verdicts:
    found, blocked = host_gathers, host_gathers.blocked
    if not found.calls:
        yield NotApplicable("the host gathers nothing between an optimizer's step and the next forward pass")
        return
    if blocked.ns < BLOCKED_SHARE * steps.mean_ns:
        yield Clean(f"{ms(blocked.ns)} a step until results are gathered")
        return
    size = "results" if found.bytes is None else f"{bytes_(found.bytes)} of results"
    yield Finding(
        evidence=(
            Evidence(
                f"Every rank sends {size} to all others in {found.calls} collectives a step, and waits for theirs:"
                f" {ms(blocked.ns)}.",
                blocked.ns,
                "ns",
            ),
        ),
        edits=(Shorten(Times(found.track, blocked.own), OWN), Shorten(Times(found.track, blocked.waiting), WAITS)),
        fixes=(COUNT,),
        confidence=Confidence(Level.MEDIUM, "no gradient goes through them; what they are for is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        site=found.site,
    )


EXAMPLES = [
    Fires(
        """
        4 steps of 100
        2 threads, 4 cores
        rank 0 of 2
        cpu  c10d::allgather_ 1-2 shapes=[[],[[512,1000]],[],[],[]] | DistributedDataParallel.forward 40-60
        cpu  "Optimizer.step#SGD.step" 90-99
        cpu threads  gloo:all_gather 2-32 shapes=[[512,1000]]
        """
    ),
    Silent(  # within the forward pass: for a loss over the examples of all ranks
        """
        4 steps of 100
        2 threads, 4 cores
        rank 0 of 2
        cpu  DistributedDataParallel.forward 1-20 | "Optimizer.step#SGD.step" 90-99
        cpu  c10d::allgather_ 21-22 shapes=[[],[[512,1000]],[],[],[]]
        cpu threads  gloo:all_gather 22-52 shapes=[[512,1000]]
        """
    ),
    CannotTell("4 steps of 100\ncpu  aten::mm 0-10", because="device work"),
]
