"""Which loader a training takes its batches from."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.trace.manifest import Loader, RankManifest


def most_asked(loaders: Sequence[Loader]) -> Loader | None:
    """The loader that the training takes its batches from, as far as that can be told."""
    return max(loaders, key=lambda loader: (loader.asked_timed or 0, loader.asked, loader.batches), default=None)


def training_loaders(rank: RankManifest) -> tuple[Loader, ...]:
    """The loader that the training takes its batches from; where that is not known, all of them."""
    most = most_asked(rank.loaders)
    return rank.loaders if most is None or not most.asked_timed else (most,)
