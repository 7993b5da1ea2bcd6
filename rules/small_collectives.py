"""Many small collectives follow each other.

Gradients or metrics are reduced tensor by tensor, or batch normalisation exchanges its statistics at every layer.

Why it costs
    Below about 1 MiB a collective takes its latency whatever it carries: 15 to 45 us in a node, 50 to 150 us between.

How to fix
    Pack what is reduced at one place into one tensor, or use DDP, which does. Reduce metrics every many steps.

Ignore when
    each result is needed before the next can be asked for, as in tensor parallelism.

Sources
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from diagnose.rule import (
    Basis,
    Between,
    CannotTell,
    Clean,
    CollectiveGroup,
    CollectiveRuns,
    Confidence,
    Evidence,
    Finding,
    Fires,
    Fix,
    Level,
    Missing,
    NotApplicable,
    Remove,
    Replace,
    Safety,
    Shorten,
    Silent,
    SmallCollectives,
    SyncedNorms,
    Verdicts,
    ms,
    rule,
)  # fmt: skip

CALLS = 20  # a step: fewer cost a millisecond at most (msprof-analyze warns from 20 synchronised layers on)
KEPT_NORM = Between(0.6, 0.3, 0.0)  # of the time of synchronised normalisation: some of it may be waiting (our choice)
PACK = Fix(
    "Reduce all at once.", safety=Safety.ROUNDING, effort=2, link="https://docs.pytorch.org/docs/stable/notes/ddp.html",
    before="for g in grads: dist.all_reduce(g)", after="dist.all_reduce(flat := torch.cat([g.ravel() for g in grads]))",
)  # fmt: skip
ALONE = Fix(
    "Normalise on each GPU alone, or within groups of few.", safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html",
)  # fmt: skip


@rule("CO06")
def many_small_collectives(
    collective_groups: tuple[CollectiveGroup, ...],
    small_collectives: SmallCollectives,
    collective_runs: CollectiveRuns,
    synced_norms: SyncedNorms,
) -> Verdicts:
    small, runs, norms = small_collectives, collective_runs, synced_norms
    if small.unknown_calls > small.calls:
        raise Missing("the sizes of most collectives", "NCCL's are recorded from PyTorch 2.2 on; others are not.")
    if not collective_groups:
        yield NotApplicable("there are no collectives")
    elif max(runs.calls, norms.calls) < CALLS:
        yield Clean(f"{small.calls} collectives of less than 1 MiB a step, {runs.calls} of them in a row")
    if runs.calls >= CALLS:
        yield Finding(
            evidence=_evidence(f"{runs.calls} small collectives a step follow each other", runs),
            edits=(Remove(runs.later_op_ids), Replace(runs.ids, runs.run, runs.joined_ns)),
            confidence=Confidence(Level.MEDIUM, "only pointwise work lies between, which could wait for all of them"),
            fixes=(PACK,), basis=Basis.RULE_OF_THUMB, host_bound=runs.host_ns > runs.exposed_ns,
        )  # fmt: skip
    if norms.calls >= CALLS:
        yield Finding(
            title="Batch normalisation is synchronised at every layer",
            evidence=_evidence(f"SyncBatchNorm starts {norms.calls} collectives a step", norms),
            edits=(Shorten(norms.op_ids, KEPT_NORM), Shorten(norms.ids, KEPT_NORM)),
            confidence=Confidence(Level.LOW, "part of it may be waiting for slower ranks"),
            fixes=(ALONE,), basis=Basis.RULE_OF_THUMB, host_bound=norms.host_ns > norms.exposed_ns,
        )  # fmt: skip


def _evidence(what: str, one: CollectiveRuns | SyncedNorms) -> tuple[Evidence, ...]:
    text = f"{what}: {ms(one.exposed_ns)} that no compute hides, {ms(one.host_ns)} of the host to start them."
    return (Evidence(text, one.calls, "collectives"),)


EXAMPLES = [
    Fires(  # 40 collectives of 40 us and 80 us of host time each
        """
        4 steps of 6
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 1-1.08 x40 every 0.1 | aten::add 5-5.1 | device_sync 5.2-5.99
        gpu     sgemm 0.1-0.9 @0.05 | pointwise 5.1-5.95 @5.05
        gpu 20  allreduce 1.05-1.09 @1.02 x40 every 0.1 operation=allreduce in_elements=9 dtype=Float
        """,
        saving_ms=(3.12, 3.12),
    ),
    Silent(  # each between two matrix products: tensor parallelism
        """
        4 steps of 6
        cpu     aten::mm 1-1.03 x40 every 0.1 | c10d::allreduce_ 1.04-1.08 x40 every 0.1 | device_sync 5.2-5.99
        gpu     sgemm 1.03-1.06 @1.01 x40 every 0.1
        gpu 20  allreduce 1.06-1.09 @1.05 x40 every 0.1 operation=allreduce in_elements=9 dtype=Float
        """
    ),
    Silent(  # hidden, and the host has time
        """
        4 steps of 6
        cpu     aten::mm 0-0.1 | c10d::allreduce_ 1-1.08 x40 every 0.1 | device_sync 5.2-5.99
        gpu     sgemm 0.1-5.95 @0.05
        gpu 20  allreduce 1.05-1.09 @1.02 x40 every 0.1 operation=allreduce in_elements=9 dtype=Float
        """
    ),
    CannotTell("gpu 20  allreduce 1.05-1.09 x40 every 0.1", because="sizes of collectives"),
]
