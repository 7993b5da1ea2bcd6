"""Barriers make all ranks wait.

The script calls a barrier in the middle of a step, where no data is exchanged.

Why it costs
    A barrier takes the latency of a collective. Ranks then meet several times per step, and each time all wait for the
    slowest.
How to fix
    Remove the barrier: collectives already order themselves. A file that one rank writes for others needs one barrier,
    not one per step.
Ignore when
    the step is being timed, or ranks exchange something outside collectives.
Sources
    https://docs.pytorch.org/docs/stable/distributed.html
"""

from diagnose.facts.communication.host_collectives import Barriers
from diagnose.rulekit.vocabulary import *

BLOCKED_SHARE = 0.01  # of the step (our choice)
OFTEN = 0.5  # barriers a step: fewer belong to something that happens now and then (our choice)
OWN = Between(0.3, 0.1, 0.0)  # of the rest: threads that come late to a barrier come late elsewhere (our choice)
WAITS = Between(0.6, 0.3, 0.0)  # of the waiting for other ranks: who is always late is waited for later (our choice)
REMOVE = Fix.of(fixes.NoBarrier())


@rule("CO15")
def barriers(barriers: Barriers, steps: Steps) -> Verdicts:
    blocked, many = barriers.blocked, len(barriers.op_ids) / steps.count
    if not len(barriers.op_ids):
        yield NotApplicable("there are no barriers")
        return
    if many < OFTEN or blocked.ns < BLOCKED_SHARE * steps.mean_ns:
        yield Clean(f"{ms(blocked.ns)}/step in {len(barriers.op_ids)} barriers over all steps")
        return
    text = f"Barriers ({barriers.calls} per step) block the CPU for {ms(blocked.ns)}, waits included."
    yield Finding(
        evidence=(Evidence(text, blocked.ns, "ns"),),
        edits=(
            Remove(blocked.ids),
            Shorten(Times(blocked.track, blocked.own), OWN),
            Shorten(Times(blocked.track, blocked.waiting), WAITS),
        ),
        fixes=(REMOVE,),
        confidence=Confidence(Level.MEDIUM, "something else may need the ranks to meet there"),
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    # 10 ms, half of it after the op has returned
    Fires("""
        4 steps of 100
        2 threads, 4 cores
        cpu       aten::mm 0-40 | c10d::barrier 40-45 | aten::mm 50-90
        cpu gloo  gloo:barrier 41-50
    """),
    # once in four steps: to write a checkpoint, say
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        cpu       aten::mm 0-40 | c10d::barrier 40-45 in 2 | aten::mm 50-90
        cpu gloo  gloo:barrier 41-50 in 2
    """),
    CannotTell("4 steps of 100\ncpu  c10d::barrier 40-45", because="device work"),
]
