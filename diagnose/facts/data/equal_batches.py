"""Do all ranks compute the same? Which batches they take is known from `diagnose profile`, by checksums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, nodes_of
from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.run import manifest
from diagnose.facts.core.shaped import Work, work_of
from diagnose.trace.loaders import most_asked

_NOT_COMPARED = Missing("whether ranks take the same batches", "Record all ranks at once, with diagnose profile.")


@dataclass(frozen=True)
class EqualBatches:
    """Batches of the ranks of a data-parallel training."""

    equal: bool
    """All ranks took the same ones."""
    ranks: int
    """That share their gradients."""
    batch_size: int | None
    sampler: str | None
    """Class of what chooses the rows."""
    work: Work
    """Forward ops that have a backward pass, and that pass: what takes as long as there are rows."""


@fact
def equal_batches(facts: Facts) -> EqualBatches | None:
    """None if gradients are not shared by DistributedDataParallel, or by some ranks only: others may split a model.

    Raises Missing like `backward_nodes`, and if batches were not compared.
    """
    known, context = manifest(facts), facts.rank.context
    if known.world_size < 2 or known.distributed is None or not known.distributed.ddp:
        return None
    loader = most_asked(known.loaders)
    if context is None or context.equal_batches is None or loader is None:
        raise _NOT_COMPARED
    table = optional(collective_table, facts)
    if table is not None and ((table.group_size > 0) & (table.group_size < known.world_size)).any():
        return None
    ops, _ = forward_ops(facts)
    made_by, made = nodes_of(facts, ops)
    nodes = backward_nodes(facts).spans
    return EqualBatches(
        equal=context.equal_batches,
        ranks=known.world_size,
        batch_size=loader.batch_size,
        sampler=loader.sampler,
        work=work_of(facts, np.concatenate((ops.ids[np.unique(made_by)], nodes.ids[made]))),
    )
