"""Which loader a training takes its batches from, and whether ranks take the same."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.trace.manifest import Loader, RankManifest

FEWEST_CHECKED = 4
"""Batches from which on ranks are told apart by them (our choice)."""


def most_asked(loaders: Sequence[Loader]) -> Loader | None:
    """The loader that the training takes its batches from, as far as that can be told."""
    return max(loaders, key=lambda loader: (loader.asked_timed or 0, loader.asked, loader.batches), default=None)


def training_loaders(rank: RankManifest) -> tuple[Loader, ...]:
    """The loader that the training takes its batches from; where that is not known, all of them."""
    most = most_asked(rank.loaders)
    return rank.loaders if most is None or not most.asked_timed else (most,)


def equal_batches(ranks: Sequence[RankManifest]) -> bool | None:
    """Whether all these ranks took the same batches in the warm-up. None if that is not known.

    Nor is it if a rank took the same batch over and over: as in a test of speed, where it means nothing.
    """
    taken = [() if (loader := most_asked(rank.loaders)) is None else loader.checksums for rank in ranks]
    count = min(map(len, taken), default=0)
    firsts = {one[:count] for one in taken}
    if len(ranks) < 2 or count < FEWEST_CHECKED or any(len(set(first)) == 1 for first in firsts):
        return None
    return len(firsts) == 1
