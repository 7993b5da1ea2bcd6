"""Barriers make all ranks wait.

The training asks all ranks to wait for each other in the middle of a step, where no data is exchanged.

Why it costs
    A barrier takes the latency of a collective, and ranks that would have met once a step meet several times: each time
    all wait for the one that is late just then.

How to fix
    Remove it. Collectives order themselves: no rank runs ahead of a reduction that it takes part in. What one rank
    writes for others, such as a checkpoint or a file of data, needs a barrier once, not in every step.

Ignore when
    the step is being timed, or ranks exchange something that is not a collective.

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
        yield Clean(f"{ms(blocked.ns)} a step in {len(barriers.op_ids)} barriers of all steps")
        return
    yield Finding(
        evidence=(
            Evidence(
                f"{barriers.calls} barriers a step hold up the host for {ms(blocked.ns)}, with waiting for others.",
                blocked.ns,
                "ns",
            ),
        ),
        edits=(
            Remove(blocked.ids),
            Shorten(Times(blocked.track, blocked.own), OWN),
            Shorten(Times(blocked.track, blocked.waiting), WAITS),
        ),
        fixes=(REMOVE,),
        confidence=Confidence(Level.MEDIUM, "whether something else needs the ranks to meet there is not recorded"),
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    Fires(  # 10 ms, half of it after the op has returned
        """
        4 steps of 100
        2 threads, 4 cores
        cpu       aten::mm 0-40 | c10d::barrier 40-45 | aten::mm 50-90
        cpu gloo  gloo:barrier 41-50
        """
    ),
    Silent(  # once in four steps: to write a checkpoint, say
        """
        4 steps of 100
        2 threads, 4 cores
        cpu       aten::mm 0-40 | c10d::barrier 40-45 in 2 | aten::mm 50-90
        cpu gloo  gloo:barrier 41-50 in 2
        """
    ),
    CannotTell("4 steps of 100\ncpu  c10d::barrier 40-45", because="device work"),
]
