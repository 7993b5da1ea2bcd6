"""Which ranks are the stages of a pipeline, in which order?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.trace.job import RECV, SEND, Course, Pipeline


def pipelines(courses: Sequence[Course]) -> list[Pipeline]:
    """The pipelines of a job whose recordings tell sides, but not ranks; none where what is sent is not received."""
    by_rank = {one.rank: one for one in courses if (one.calls.toward != 0).any()}
    if not by_rank:
        return []
    for ranks in _ways(by_rank):
        made = [_made([by_rank[rank] for rank in some]) for some in ranks]
        found = [one for one in made if one is not None]
        if len(found) == len(ranks):
            return found
    return []


def _ways(courses: dict[int, Course]) -> Iterator[list[tuple[int, ...]]]:
    """Ways to split the ranks into pipelines: by groups of one use, else all in one."""
    groups = {(group.use, group.ranks) for one in courses.values() for group in one.known_groups}
    uses = sorted({use for use, _ in groups}, key=lambda use: ("pp" not in use and "pipe" not in use.lower(), use))
    for use in uses:
        some = sorted(ranks for name, ranks in groups if name == use and len(ranks) > 1)
        if sorted(rank for ranks in some for rank in ranks) == sorted(courses):
            yield some
    yield [tuple(sorted(courses))]


def _made(courses: Sequence[Course]) -> Pipeline | None:
    """The pipeline of ranks in this order, if every stage receives as much as its neighbours send to it."""
    stages: dict[int, int] = {}
    for position, one in enumerate(courses):
        told = np.unique(one.calls.stage[one.calls.stage >= 0]).tolist()
        for stage in told or [position]:
            if stage in stages:
                return None
            stages[stage] = one.rank
    if sorted(stages) != list(range(len(stages))):
        return None
    made = Pipeline(tuple(one.rank for one in courses), tuple(stages[k] for k in range(len(stages))))
    balance: dict[tuple[int, int], int] = {}
    for one in courses:
        peers = made.peers(one.rank, one.calls.stage, one.calls.toward)
        names = np.array(one.operations, dtype=object)[one.calls.operation]
        inside = one.calls.step >= 0
        for name, sign in ((SEND, 1), (RECV, -1)):
            mine = inside & (names == name)
            if (peers[mine] < 0).any():
                return None
            for peer, count in zip(*np.unique(peers[mine], return_counts=True), strict=True):
                pair = (one.rank, int(peer)) if sign > 0 else (int(peer), one.rank)
                balance[pair] = balance.get(pair, 0) + sign * int(count)
    return made if not any(balance.values()) else None
