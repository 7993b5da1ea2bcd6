"""Which ranks are the stages of a pipeline, in which order?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.trace.job import RECV, SEND, CollectiveSequence, Pipeline


def pipelines(sequences: Sequence[CollectiveSequence]) -> list[Pipeline]:
    """The pipelines of a job whose recordings tell sides or ranks; none where what is sent is not received."""
    by_rank = {
        sequence.rank: sequence
        for sequence in sequences
        if ((sequence.calls.toward != 0) | (sequence.calls.peer >= 0)).any()
    }
    if not by_rank:
        return []
    for ranks in _ways(by_rank):
        made = [_made([by_rank[rank] for rank in some]) for some in ranks]
        found = [one for one in made if one is not None]
        if len(found) == len(ranks):
            return found
    return []


def _ways(sequences: dict[int, CollectiveSequence]) -> Iterator[list[tuple[int, ...]]]:
    """Ways to split the ranks into pipelines: by whom they send to, by groups of one use, else all in one."""
    if joined := _joined(sequences):
        yield joined
    groups = {(group.use, group.ranks) for sequence in sequences.values() for group in sequence.known_groups}
    uses = sorted({use for use, _ in groups}, key=lambda use: ("pp" not in use and "pipe" not in use.lower(), use))
    for use in uses:
        some = sorted(ranks for name, ranks in groups if name == use and len(ranks) > 1)
        if sorted(rank for ranks in some for rank in ranks) == sorted(sequences):
            yield some
    yield [tuple(sorted(sequences))]


def _joined(sequences: dict[int, CollectiveSequence]) -> list[tuple[int, ...]]:
    """Ranks that send to each other, directly or by others; none where that is not recorded."""
    pipeline_of = {rank: {rank} for rank in sequences}
    for rank, one in sequences.items():
        for peer in np.unique(one.calls.peer[one.calls.peer >= 0]).tolist():
            if peer not in sequences:
                return []
            both = pipeline_of[rank] | pipeline_of[peer]
            pipeline_of |= dict.fromkeys(both, both)
    found = sorted({tuple(sorted(one)) for one in pipeline_of.values()})
    return found if all(len(one) > 1 for one in found) else []


def _begins_with(one: CollectiveSequence) -> str:
    """What a rank does first: the last one of a pipeline receives, the first one sends."""
    names = np.array(one.operations, dtype=object)[one.calls.operation[one.calls.step >= 0]]
    return next((str(name) for name in names if name in (SEND, RECV)), "")


def _made(sequences: Sequence[CollectiveSequence]) -> Pipeline | None:
    """The pipeline of ranks in this order, if every stage receives as much as its neighbours send to it."""
    stages: dict[int, int] = {}
    for position, one in enumerate(sequences):
        told = np.unique(one.calls.stage[one.calls.stage >= 0]).tolist()
        for stage in told or [position]:
            if stage in stages:
                return None
            stages[stage] = one.rank
    if sorted(stages) != list(range(len(stages))) or _begins_with(sequences[0]) == _begins_with(sequences[-1]):
        return None  # In a ring all begin alike.
    made = Pipeline(tuple(sequence.rank for sequence in sequences), tuple(stages[k] for k in range(len(stages))))
    balance: dict[tuple[int, int], int] = {}
    for sequence in sequences:
        peers = made.peers_of(sequence)
        names = np.array(sequence.operations, dtype=object)[sequence.calls.operation]
        inside = sequence.calls.step >= 0
        for name, sign in ((SEND, 1), (RECV, -1)):
            mine = inside & (names == name)
            if (peers[mine] < 0).any():
                return None
            for peer, count in zip(*np.unique(peers[mine], return_counts=True), strict=True):
                pair = (sequence.rank, int(peer)) if sign > 0 else (int(peer), sequence.rank)
                balance[pair] = balance.get(pair, 0) + sign * int(count)
    return made if not any(balance.values()) else None
