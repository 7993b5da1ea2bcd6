"""Every rank trains on the same batch.

The loader of a data-parallel training chooses rows without regard to the rank, as with `shuffle=True` and one seed for
all, so that the gradients that ranks average are the same.

Why it costs
    All ranks do what one could do alone: an epoch takes as many steps as on one rank, and communication besides.

How to fix
    A DistributedSampler gives each rank its own rows, and so does `islice(rows, rank, None, ranks)` in an
    IterableDataset. Then either a rank's batch gets smaller by the number of ranks, for the same step in less time; or
    it stays, and an epoch has fewer steps.

Ignore when
    ranks split the model rather than the data.

Sources
    https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
"""

from diagnose.facts.data.equal_batches import EqualBatches
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device (our choice)
SHARE = Fix(
    "Give each rank rows of its own.",
    before="DataLoader(dataset, 32, shuffle=True)",
    after="DataLoader(dataset, 32 // world_size, sampler=DistributedSampler(dataset))  # set_epoch(n) in each epoch",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)


@rule("CO17")
def duplicate_batches(equal_batches: EqualBatches | None, steps: Steps) -> Verdicts:
    found = equal_batches
    if found is None:
        yield NotApplicable("no DistributedDataParallel averages the gradients of all ranks")
        return
    if not found.equal:
        yield Clean("ranks take different batches")
        return
    again_ns = found.work.longest_ns * (found.ranks - 1) // found.ranks
    if again_ns < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"ranks take the same batches, of which they compute {ms(found.work.longest_ns)} a step")
        return
    left = 1 / found.ranks
    by = "" if found.sampler is None else f" (chosen by a {found.sampler})"
    yield Finding(
        evidence=(
            Evidence(
                f"All {found.ranks} ranks take the same batches{by}. With its part of the rows each would be spared"
                f" {ms(again_ns)} of the {ms(found.work.longest_ns)} a step that layers take, forth and back.",
                again_ns,
                "ns",
            ),
        ),
        edits=(Shorten(found.work.data_ids, Between((1 + left) / 2, left, left)),),
        fixes=(SHARE,),
        confidence=Confidence(Level.HIGH, "checksums of the first batches are equal on all ranks"),
        basis=Basis.RULE_OF_THUMB,
    )


EXAMPLES = [
    Fires(  # of 60 ms half: the other rank does it as well
        """
        2 steps of 100
        2 threads, 4 cores
        rank 0 of 2
        equal batches
        cpu  aten::linear 0-20 sequence=5 in 0 | aten::linear 0-20 sequence=15 in 1
        cpu  "autograd::engine::evaluate_function: AddmmBackward0" 20-60 sequence=5 "Fwd thread id"=1 in 0
        cpu  "autograd::engine::evaluate_function: AddmmBackward0" 20-60 sequence=15 "Fwd thread id"=1 in 1
        """,
        saving_ms=(15, 51),
    ),
    Silent(
        """
        2 steps of 100
        2 threads, 4 cores
        rank 0 of 2
        different batches
        cpu  aten::linear 0-20 sequence=5 in 0 | aten::linear 0-20 sequence=15 in 1
        cpu  "autograd::engine::evaluate_function: AddmmBackward0" 20-60 sequence=5 "Fwd thread id"=1 in 0
        cpu  "autograd::engine::evaluate_function: AddmmBackward0" 20-60 sequence=15 "Fwd thread id"=1 in 1
        """
    ),
    CannotTell("4 steps of 100\nrank 0 of 2\ncpu  aten::linear 0-20", because="DataLoader options"),
]
