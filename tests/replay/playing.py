"""Ranks played by the clock, for tests of jobs: programs in, sequences out, by a way of its own."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from diagnose.trace.job import RECV, SEND, Calls, CollectiveSequence, Lane, ProcessGroup, Work

MS = 1_000_000


class Own(Struct, frozen=True):
    """Computes."""

    ns: int


class Meet(Struct, frozen=True):
    """Asks for a collective of these ranks and waits for it."""

    ranks: tuple[int, ...]
    transfer_ns: int = 0


class Send(Struct, frozen=True):
    """Hands over, and goes on once the other rank is there."""

    to: int
    transfer_ns: int = 0


class Recv(Struct, frozen=True):
    """Waits for what another rank sends."""

    source: int
    transfer_ns: int = 0


class NextStep(Struct, frozen=True):
    """A step ends."""


Program = Sequence[Own | Meet | Send | Recv | NextStep]


class _Rank(Struct):
    at: int = 0
    now: int = 0


def play(programs: Sequence[Program], machine: int = 0) -> list[CollectiveSequence]:
    """The sequences of ranks 0, 1, ... that run these programs from time 0 on. Everything meets what it waits for."""
    ranks = [_Rank() for _ in programs]
    asked: list[list[tuple[Meet | Send | Recv, int, int, int]]] = [[] for _ in programs]  # op, begin, end, step
    events: list[list[tuple[int, bool, int, int, int]]] = [[] for _ in programs]  # call, waits, from, until, own
    bounds: list[list[int]] = [[0] for _ in programs]
    own = [0] * len(programs)
    waiting: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    turns: list[dict[tuple[object, ...], int]] = [defaultdict(int) for _ in programs]
    while any(rank.at < len(program) for rank, program in zip(ranks, programs, strict=True)):
        moved = False
        for me, (rank, program) in enumerate(zip(ranks, programs, strict=True)):
            if rank.at == len(program):
                continue
            op = program[rank.at]
            if isinstance(op, Own):
                rank.now, own[me] = rank.now + op.ns, own[me] + op.ns
            elif isinstance(op, NextStep):
                bounds[me].append(rank.now)
                events[me].append((-1, False, rank.now, rank.now, own[me]))
                own[me] = 0
            else:
                place, there = _place(op, me)
                key = (*place, turns[me][place])
                waiting[key].setdefault(me, rank.now)
                if len(waiting[key]) < there:
                    continue
                turns[me][place] += 1
                begin, end = rank.now, max(waiting[key].values()) + op.transfer_ns
                call = len(asked[me])
                asked[me].append((op, begin, end, len(bounds[me]) - 1))
                events[me].append((call, False, begin, begin, own[me]))
                events[me].append((call, True, begin, end, 0))
                own[me], rank.now = 0, end
            rank.at += 1
            moved = True
        assert moved, "ranks wait for each other"
    return [_course(me, asked[me], events[me][:-1], bounds[me], len(programs), machine) for me in range(len(programs))]


def _place(op: Meet | Send | Recv, me: int) -> tuple[tuple[object, ...], int]:
    if isinstance(op, Meet):
        return ("all", op.ranks), len(op.ranks)
    return ("one", me, op.to) if isinstance(op, Send) else ("one", op.source, me), 2


def _course(
    me: int,
    asked: list[tuple[Meet | Send | Recv, int, int, int]],
    events: list[tuple[int, bool, int, int, int]],
    bounds: list[int],
    world: int,
    machine: int,
) -> CollectiveSequence:
    met = [op.ranks if isinstance(op, Meet) else () for op, *_ in asked]
    groups = tuple(dict.fromkeys(one for one in met if one))
    names = ("allreduce", SEND, RECV)
    kind = [0 if isinstance(op, Meet) else 1 if isinstance(op, Send) else 2 for op, *_ in asked]
    peer = [-1 if isinstance(op, Meet) else op.to if isinstance(op, Send) else op.source for op, *_ in asked]
    count = len(asked)
    lane = np.array(events, dtype=np.int64).reshape(-1, 5)
    edges = np.array(bounds)
    steps = np.searchsorted(edges, lane[:, 2], side="left") - 1
    compute = np.bincount(np.clip(steps, 0, len(bounds) - 2), weights=lane[:, 4], minlength=len(bounds) - 1)
    compute[-1] += edges[-1] - (lane[-1, 3] if len(lane) else 0)
    return CollectiveSequence(
        rank=me,
        world_size=world,
        machine=machine,
        device=-1,
        on_cpu=True,
        numbers=tuple(range(len(bounds) - 1)),
        window=False,
        bounds_ns=edges,
        compute_ns=compute.astype(np.int64),
        work=Work(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)),
        operations=names,
        groups=tuple(ProcessGroup(str(ranks), "", ranks) for ranks in groups),
        known_groups=(),
        calls=Calls(
            ids=np.arange(count),
            operation=np.array(kind, dtype=np.int64),
            group=np.array([groups.index(one) if one else -1 for one in met], dtype=np.int64),
            members=np.array([len(one) or 2 for one in met], dtype=np.int64),
            sequence=np.full(count, -1),
            peer=np.array(peer, dtype=np.int64),
            stage=np.full(count, -1),
            toward=np.zeros(count, dtype=np.int64),
            bytes=np.full(count, -1),
            step=np.array([step for *_, step in asked], dtype=np.int64),
            begin_ns=np.array([begin for _, begin, _, _ in asked], dtype=np.int64),
            end_ns=np.array([end for _, _, end, _ in asked], dtype=np.int64),
            queue=-1 - np.arange(count),
            after=np.full(count, -1),
        ),
        lane=Lane(lane[:, 0], lane[:, 1].astype(bool), *lane[:, 2:].T, lane[:, 4]),
    )


def one_step_each(*own_ms: float) -> list[Program]:
    """Ranks that compute for so long, meet for 2 ms, and do so in three steps."""
    everyone = tuple(range(len(own_ms)))
    return [[Own(round(ms * MS)), Meet(everyone, 2 * MS), NextStep()] * 3 for ms in own_ms]
