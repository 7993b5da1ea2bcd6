"""Which ranks of a run are recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator

MOST = 64  # Ranks that are all recorded: what they write fits the disk and the patience of a laptop (our choice).
FEW = 8  # Of a larger group the first are: an eighth of MOST, as many as a machine has usually (our choice).


def named(asked: str, world_size: int, most: int = MOST) -> frozenset[int] | None:
    """The ranks that are asked for, "all" or as in "0,1,8-15", or that "auto" stands for; None if it depends.

    `most`: of a run of so many all are recorded by "auto".

    Raises ValueError with a sentence if the text is no list of ranks.
    """
    if asked == "all" or (asked == "auto" and world_size <= most):
        return frozenset(range(world_size))
    if asked == "auto":
        return None
    return frozenset(rank for first, last in _ranges(asked) for rank in range(first, min(last + 1, world_size)))


def _ranges(asked: str) -> Iterator[tuple[int, int]]:
    for part in asked.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise ValueError(f"{asked!r} are not ranks. Write auto, all, or numbers such as 0,1,8-15.")
        yield int(first), int(last or first)


def of_groups(rank: int, world_size: int, most: int = MOST) -> frozenset[int]:
    """The ranks of each process group of a rank, this one, and of one of more than `most` ranks the first.

    So each way in which the training is parallel is there once: a pipeline has all of its stages, a tensor-parallel
    group all of its shards.
    """
    few = max(most // FEW, 1)
    found = set(range(min(few, world_size)))
    for ranks in _groups(rank):
        found.update(sorted(ranks)[: len(ranks) if len(ranks) <= most else few])
    return frozenset(found)


def _groups(rank: int) -> list[list[int]]:
    """The ranks of each process group that this rank is in; none where torch does not tell."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    known = getattr(getattr(distributed, "_world", None), "pg_group_ranks", {})
    return [list(ranks) for ranks in known.values() if rank in ranks]
