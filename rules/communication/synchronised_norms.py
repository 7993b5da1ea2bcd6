"""SyncBatchNorm synchronises at every layer.

SyncBatchNorm exchanges its statistics with all ranks, once forward and once backward per layer.

Why it costs
    Each exchange is a small collective that the next layer waits for: 15 to 45 us within a node, 50 to 150 us between
    nodes. Nothing can hide this latency, and a late rank delays all others.
How to fix
    Normalise on each GPU alone if its batch is large enough, or within groups of few ranks.
Ignore when
    batches per rank are too small for stable statistics.
Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    https://github.com/pytorch/pytorch/pull/38246
"""

from diagnose.facts.communication.messages import SyncedNorms
from diagnose.rulekit.vocabulary import *

CALLS = 20  # a step: fewer cost a millisecond at most (msprof-analyze warns from 20 synchronised layers on)
KEPT = Between(0.6, 0.3, 0.0)  # of the time of synchronised normalisation: some of it may be waiting (our choice)
ALONE = Fix(
    "Normalise on each GPU alone, or within groups of few ranks.",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html",
)


@rule("CO14")
def synchronised_norms(synced_norms: SyncedNorms) -> Verdicts:
    norms = synced_norms
    if not norms.calls:
        yield NotApplicable("no SyncBatchNorm runs")
    elif norms.calls < CALLS:
        yield Clean(f"{norms.calls} SyncBatchNorm collectives per step")
    else:
        took = f"{ms(norms.exposed_ns)} exposed, {ms(norms.host_ns)} of CPU time"
        text = f"{norms.calls} SyncBatchNorm collectives per step: {took}."
        yield Finding(
            evidence=(Evidence(text, norms.calls, "collectives"),),
            edits=(Shorten(norms.op_ids, KEPT), Shorten(norms.ids, KEPT)),
            confidence=Confidence(Level.LOW, "part of the time may be waiting for slower ranks"),
            fixes=(ALONE,),
            kind=Kind.OPTION,
            basis=Basis.RULE_OF_THUMB,
            host_bound=norms.host_ns > norms.exposed_ns,
        )


EXAMPLES = [
    # 20 exchanges of 40 us that the next layer waits for
    Fires("""
        4 steps of 6
        cpu     SyncBatchNorm 1-1.09 x20 every 0.2 | device_sync 5.2-5.99
        cpu     c10d::allgather_ 1.01-1.08 x20 every 0.2
        gpu     sgemm 1.1-1.18 @1.085 x20 every 0.2 | pointwise 5.1-5.95 @5.05
        gpu 20  allgather 1.05-1.09 @1.02 x20 every 0.2 operation=_allgather_base in_elements=9 dtype=Float
    """),
    # a few layers
    Silent("""
        4 steps of 6
        cpu     SyncBatchNorm 1-1.09 x4 every 0.2 | device_sync 5.2-5.99
        cpu     c10d::allgather_ 1.01-1.08 x4 every 0.2
        gpu     sgemm 1.1-1.18 @1.085 x4 every 0.2 | pointwise 5.1-5.95 @5.05
        gpu 20  allgather 1.05-1.09 @1.02 x4 every 0.2 operation=_allgather_base in_elements=9 dtype=Float
    """),
    CannotTell("cpu  SyncBatchNorm 1-1.09 x20 every 0.2", because="device work"),
]
