"""Which ranks are the stages of a pipeline, in which order, and to which neighbour does each send and recv go?

Schedules of several stages a rank name their actions ("PP:2F0": stage, kind, micro-batch; torch 2.9). GPipe and 1F1B
need no names: NCCL records the other rank, and stages are ranks in order of their group. Gloo does not: what comes out
of a forward pass goes to the next stage, what comes out of a backward pass to the one before, and a stage receives for
its passes in their order.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.core.base import Facts
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import BACKWARD, name_of, named, op_column
from diagnose.facts.core.spans import host_spans, spans_of, used_step
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.job import RECV, SEND, CollectiveSequence, Pipeline


def pipelines(sequences: Sequence[CollectiveSequence]) -> list[Pipeline]:
    """The pipelines of a job whose recordings tell sides or ranks; none where what is sent is not received."""
    by_rank = {one.rank: one for one in sequences if _tells_other(one)}
    for ranks in _splits(by_rank) if by_rank else ():
        found = [made for some in ranks if (made := _pipeline([by_rank[rank] for rank in some])) is not None]
        if len(found) == len(ranks):
            return found
    return []


def _tells_other(one: CollectiveSequence) -> bool:
    return bool((one.calls.toward != 0).any() or (one.calls.peer >= 0).any())


def paired(sequences: Sequence[CollectiveSequence]) -> list[CollectiveSequence]:
    """The sequences, with the peers of two-stage pipelines filled in where no transfer tells its other rank or side.

    The k-th rank that begins with a send is paired with the k-th that begins with a recv, if each sends as often as the
    other receives, and no recv ends before its send begins.
    """
    which = [{name: _calls_of(one, name) for name in (SEND, RECV)} for one in sequences]
    sides = [[at for at, one in enumerate(sequences) if _begins_with(one) == name] for name in (SEND, RECV)]
    both = list(zip(*sides, strict=False))
    ways = [(a, which[a][SEND], b, which[b][RECV]) for pair in both for a, b in (pair, pair[::-1])]
    causal = (
        len(sent) == len(got) and (sequences[a].calls.begin_ns[sent] <= sequences[b].calls.end_ns[got]).all()
        for a, sent, b, got in ways
    )
    found = list(sequences)
    if len(sides[0]) != len(sides[1]) or any(map(_tells_other, sequences)) or not all(causal):
        return found
    for a, sent, b, got in ways:
        for at, rows, other in ((a, sent, b), (b, got, a)):
            peer = found[at].calls.peer.copy()
            peer[rows] = sequences[other].rank
            found[at] = replace(found[at], calls=replace(found[at].calls, peer=peer))
    return found


def _calls_of(one: CollectiveSequence, name: str) -> IntArray:
    """Positions of the calls of this operation."""
    return np.flatnonzero(np.array([each == name for each in one.operations], dtype=bool)[one.calls.operation])


def _splits(sequences: dict[int, CollectiveSequence]) -> Iterator[list[tuple[int, ...]]]:
    """Ways to split the ranks into pipelines: by whom they send to, by groups of one use, else all in one."""
    if joined := _connected(sequences):
        yield joined
    groups = {(group.use, group.ranks) for sequence in sequences.values() for group in sequence.known_groups}
    uses = sorted({use for use, _ in groups}, key=lambda use: ("pp" not in use and "pipe" not in use.lower(), use))
    for use in uses:
        some = sorted(ranks for name, ranks in groups if name == use and len(ranks) > 1)
        if sorted(rank for ranks in some for rank in ranks) == sorted(sequences):
            yield some
    yield [tuple(sorted(sequences))]


def _connected(sequences: dict[int, CollectiveSequence]) -> list[tuple[int, ...]]:
    """Sets of ranks that send to each other, directly or through others; none if peers of some rank are not known."""
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
    """SEND or RECV, whichever a rank does first (the first of a pipeline sends, the last receives); "" without any."""
    names = np.array(one.operations, dtype=object)[one.calls.operation[one.calls.step >= 0]]
    return next((str(name) for name in names if name in (SEND, RECV)), "")


def _pipeline(sequences: Sequence[CollectiveSequence]) -> Pipeline | None:
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


_ACTION = re.compile(r"PP:(\d+)(SEND|RECV)_([FB])\d+")
_TOWARD = {("SEND", "F"): 1, ("SEND", "B"): -1, ("RECV", "F"): -1, ("RECV", "B"): 1}
LITTLE = 0.1  # Of what a long pass takes; less is no pass (our choice).


class Sides(Struct, frozen=True):
    """For each call where it goes or comes from in a pipeline; known of transfers only. Arrays of shape (calls,)."""

    stage: IntArray  # -1 unknown.
    toward: IntArray  # 1: the next stage, -1: the one before, 0: unknown.


def pipeline_sides(facts: Facts, ids: IntArray, operation: npt.NDArray[np.object_], beside: IntArray) -> Sides:
    """The sides of the transfers among these collectives, in order of time.

    `ids`: spans on the host, of a kernel the call that launched it. `beside`: 1 where the other rank is recorded and is
    the next of the group, -1 where it is the one before, else 0.
    """
    transfers = np.flatnonzero(np.isin(operation, (SEND, RECV)))
    stage, toward = np.full(len(ids), -1), np.zeros(len(ids), dtype=np.int64)
    if not len(transfers):
        return Sides(stage, toward)
    mine = ids[transfers]
    told = _of_actions(facts, mine)
    if (told.toward != 0).all():
        stage[transfers], toward[transfers] = told.stage, told.toward
    elif (beside[transfers] != 0).all():
        toward[transfers] = beside[transfers]
    elif not len(device_work(facts).ids):
        toward[transfers] = _by_order(facts, mine, operation[transfers] == SEND)
    return Sides(stage, toward)


def _of_actions(facts: Facts, ids: IntArray) -> Sides:
    """Stage and side of each transfer by the schedule action around it; -1 and 0 outside of actions."""
    actions = host_spans(facts, SpanKind.ANNOTATION, named=lambda name: bool(_ACTION.match(name)))
    around = np.append(actions.ids, intervals.NONE)[actions.around(spans_of(facts, ids))]
    matches = [_ACTION.match(name_of(facts, action)) for action in around.tolist()]
    stage = [int(action_match[1]) if action_match else -1 for action_match in matches]
    toward = [_TOWARD[action_match[2], action_match[3]] if action_match else 0 for action_match in matches]
    return Sides(np.array(stage, dtype=np.int64), np.array(toward, dtype=np.int64))


def _by_order(facts: Facts, ids: IntArray, sends: npt.NDArray[np.bool_]) -> IntArray:
    """Side of each transfer by the order of passes: 1 to or from the next stage, -1 the one before, 0 unknown."""
    step, passes = used_step(facts, ids), _passes(facts, facts.rank.spans["start_ns"].to_numpy()[ids])
    toward = np.zeros(len(ids), dtype=np.int64)
    for number in np.intersect1d(step[step >= 0], passes.step).tolist():
        here = np.flatnonzero(step == number)
        forward, after = passes.forward[passes.step == number], passes.after[passes.step == number]
        last = np.searchsorted(after, here, side="right") - 1
        sent = np.where(forward[np.maximum(last, 0)], 1, -1)
        received = np.flatnonzero(~sends[here])
        if len(received) >= len(forward):  # A stage in the middle: one transfer in for each pass.
            order = np.minimum(np.arange(len(received)), len(forward) - 1)
            came = np.where(forward[order], -1, 1)
        else:
            came = np.full(len(received), 1 if sends[here[0]] else -1)
        toward[here] = sent
        toward[here[received]] = came
    return toward


class _Passes(Struct, frozen=True):
    """Forward and backward passes of micro-batches, in order. Arrays of shape (passes,)."""

    forward: npt.NDArray[np.bool_]
    after: IntArray  # How many transfers had been asked for before it.
    step: IntArray


def _passes(facts: Facts, asked_ns: IntArray) -> _Passes:
    """Runs of ops between transfers: backward passes of autograd's ops, forward passes of ops that make autograd nodes.

    Runs under LITTLE of the upper quartile of their kind are left out: they prepare or collect.
    """
    ops = host_spans(facts, SpanKind.OP)
    ops = ops.where(ops.track == host_threads(facts).main).outermost()
    backward = named(facts, ops.ids, f"{BACKWARD}*")
    kept = backward | (op_column(facts, "sequence", ops.ids) >= 0)
    ops, backward = ops.where(kept), backward[kept]
    between = np.searchsorted(np.sort(asked_ns), ops.start_ns, side="right")
    step = used_step(facts, ops.ids)
    key = np.stack((step, between, backward.astype(np.int64)))
    new = np.concatenate(([True], (np.diff(key) != 0).any(axis=0)))[: len(step)]
    took_ns = np.bincount(np.cumsum(new) - 1, weights=ops.end_ns - ops.start_ns, minlength=int(new.sum()))
    forward, long = ~backward[new], np.zeros(int(new.sum()), dtype=bool)
    for kind in (forward, ~forward):
        long[kind] = took_ns[kind] >= LITTLE * np.quantile(took_ns[kind], 0.75) if kind.any() else False
    return _Passes(forward[long], between[new][long], step[new][long])
