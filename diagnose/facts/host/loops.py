"""Which small ops run over and over within a step, where one larger one could do for all?

What repeats in the backward pass without any parameter's gradient being complete in between is a loop over data
(samples, rows, moments), not a stack of layers: each layer has parameters of its own. Its forward part repeats as
often, or once more: in the last backward round gradients of parameters become complete, so that it is not like others.

What repeats without any backward pass (bookkeeping, masks, numbers that are read) is a loop unless it computes as
layers do: a stack of layers looks the same where no gradients are kept.
"""

import numpy as np
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.autograd.backward import backward_ops, dataflow
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import TimeCause, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_activities, host_threads
from diagnose.facts.core.inputs import BACKWARD, Mask, name_codes, named
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.seen_ops import inside, seen_ops
from diagnose.facts.core.spans import (
    NO_SPANS,
    HostSpans,
    first_of_function,
    host_spans,
    launched_in,
    on_training_threads,
    require_ops,
    sites_of,
    used_step,
)
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.host.callees import texts, whole_calls
from diagnose.facts.optimizer.optimizer import updates, zeroings
from diagnose.trace import intervals
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

LEAST_ROUNDS = 4  # Two or three may be what a model consists of. Chosen.
MOST_OPS = 64  # Of one round of a loop that are looked for.

OP_NS = 20_000
"""Of an op that computes on the CPU, what does not grow with its size: in planted loops with a batch of 1 to 64 what
batching saved was 15 to 28 us for each outermost op, forward and backward."""

LARGE_NS = 500_000
"""Of what an op takes beyond that, nothing is gained by larger ones: matrices that keep a core busy so long are read
from memory as seldom as larger ones. With ops of 4 ms planted loops gained the fixed time only."""

PYTHON_NS = 100_000
"""Python that takes so long between ops without gradients does work of its own, which stays when the ops are one: calls
take up to 24 us for each op in planted loops, and reading a text piece by piece takes 130 us."""

KERNEL_NS = 3_000  # The same of a kernel: the shortest take 2 to 3 us. Chosen.

LAYERS = tuple(
    f"aten::{name}"
    for name in (
        *("linear", "addmm", "mm", "bmm", "baddbmm", "matmul", "einsum", "conv", "_conv", "mkldnn_", "embedding"),
        *("scaled_dot", "_scaled_dot", "layer_norm", "batch_norm", "group_norm", "native_", "lstm", "gru", "rnn"),
    )
)
"""How names begin of what layers with parameters of their own compute."""

# How names begin of what is not fused with the ops around it.
_STAY = (*LAYERS, "aten::linalg_", "aten::fft_", "aten::cumsum", "aten::sort", "aten::topk")

_ENTERS, _LEAVES = ("aten::lift_fresh", "aten::lift"), ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
"""Ops by which what Python made becomes a tensor (torch.tensor, torch.from_numpy), and numbers are given to Python. A
round that has both may ask an environment what comes next: it needs the round before, whatever autograd knows."""

ONE_LOOP = 0.5  # Of a loop's time in that of a larger one, from which on they are one loop (our choice).

_ADDS = ("aten::add_", "aten::add")
"""Ops by which a backward pass adds what each round but the first says of a gradient: rounds are alike but for them."""


class Loop(Struct, frozen=True):
    """Rounds of the same ops, forward and backward. Numbers are per step unless they say otherwise."""

    ops: tuple[str, ...]  # Of a round of the forward part, in order; of the backward part where only that was found.
    has_backward: bool  # Else no gradients were kept.
    rounds: int  # In a row.
    site: Site | None  # The head of the loop; where its lines are not known, that of its first op.
    pieces: tuple[tuple[int, Intervals], ...]  # When it ran, by thread, without waits for others and what was known.
    work_ids: IntArray  # Device work that was launched meanwhile.
    ns: int  # Host time in it.
    fixed_ns: int  # Of that, what each op takes whatever it computes, and adding up what rounds say of a gradient.
    left: float  # Share of the host time that is left if all rounds are one, and ops take what they compute as before.
    least_left: float  # The same if of each op only what exceeds LARGE_NS is left of all rounds but one.
    work_left: float  # The same of the device work.
    in_need: float | None  # Share of what a round computes that needs the round before; None if that is not known.
    in_turn_left: float  # Of the host time if rounds stay apart, and ops between products, solvers and such are one.
    in_turn_least: float  # The same if ops between those are none, as where these are fused with them.


@fact
def loops(facts: Facts) -> tuple[Loop, ...]:
    """Loops of the used steps whose rounds Python does not come between, those with most fixed time first.

    Raises Missing without ops or steps.
    """
    require_ops(facts)
    if steps(facts).measure is Measure.WINDOW:
        raise Missing("marked steps", "Call prof.step() after each step: the training itself is a loop.")
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    ops = ops.where(np.lexsort((ops.start_ns, ops.track)))
    ops = ops.where(~named(facts, ops.ids, *_ADDS))
    written = optional(texts, facts)
    of_libraries = intervals.merge(whole_calls(facts), NO_SPANS.times if written is None else written.spans.times)
    ops = ops.where(intervals.covered(Intervals(ops.start_ns, ops.end_ns), of_libraries) == 0)
    names, step = name_codes(facts, ops.ids), used_step(facts, ops.ids)
    found, of_step = dict[tuple[int, ...], list[_Pair]](), dict[int, list[_Run]]()
    runs = _runs(facts, ops, names, step, _shapes(facts, ops))
    for run in runs:
        of_step.setdefault(run.step, []).append(run)
    for run in runs:
        forward = _forward_of(run, of_step[run.step]) if run.backward else None
        if run.backward and (forward or run).rounds >= LEAST_ROUNDS and not _within_one_op(facts, ops, run):
            found.setdefault(tuple(names[run.first_round].tolist()), []).append((run, forward))
    again = _computed_again(facts, ops)
    made = [_loop(facts, ops, again, rows) for rows in (*found.values(), *_without_backward(facts, ops, names, step))]
    own = (one for one in made if not ({*one.ops} & {*_ENTERS} and {*one.ops} & {*_LEAVES}))
    return apart_in_time(sorted(own, key=lambda one: -one.fixed_ns))


class _Run(Struct, frozen=True):
    """Rounds in a row on one thread in one step: the ops at positions `first` to `last`, `last` not included."""

    first: int
    last: int
    length: int  # Of a round.
    step: int
    backward: bool

    @property
    def rounds(self) -> int:
        return (self.last - self.first) // self.length

    @property
    def first_round(self) -> slice:
        return slice(self.first, self.first + self.length)


_Pair = tuple[_Run, _Run | None]  # Rounds, mostly backward, and those that they go back through.


def _runs(facts: Facts, ops: HostSpans, names: IntArray, step: IntArray, shape: IntArray) -> list[_Run]:
    """Rounds in a row, none in two of them: those that cover most ops first, of equal ones the shortest rounds.

    `shape`: a number for each op, equal where ops may be of one round after the other.
    """
    labels, candidates = facts.rank.spans["name"].cat.categories, []
    is_backward = np.array([label.startswith(BACKWARD) for label in labels], dtype=bool)[names]
    completes = np.array(["AccumulateGrad" in label for label in labels], dtype=bool)[names]
    for length in range(1, min(MOST_OPS, len(names) // 2) + 1):
        same = (names[length:] == names[:-length]) & (shape[length:] == shape[:-length])
        same &= (ops.track[length:] == ops.track[:-length]) & (step[length:] == step[:-length]) & (step[length:] >= 0)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if last - first >= (LEAST_ROUNDS - 2) * length:
                candidates.append((first, last + length, length))
    taken, runs = np.zeros(len(names), dtype=bool), []
    for first, last, length in sorted(candidates, key=lambda candidate: (candidate[0] - candidate[1], candidate[2])):
        if not (taken[first:last].any() or completes[first:last].any()):
            taken[first:last] = True
            runs.append(_Run(first, last, length, int(step[first]), bool(is_backward[first : first + length].any())))
    return runs


def _shapes(facts: Facts, ops: HostSpans) -> IntArray:
    """A number for each op's input shapes, equal where shapes are equal; all equal if none were recorded."""
    table = facts.rank.ops
    codes = np.append(table["shapes"].cat.codes.to_numpy().astype(np.int64), -1)
    found: IntArray = codes[table.index.get_indexer(pd.Index(ops.ids))]
    return found


def _forward_of(backward: _Run, of_step: list[_Run]) -> _Run | None:
    """The forward run of the same step with as many rounds, or one more; of several the one that covers most ops.

    Of several such the last belongs to the first backward run, the one before to the next: a loop within another one.
    """
    alike = [run for run in of_step if not run.backward and run.rounds - backward.rounds in (0, 1)]
    most = max((run.last - run.first for run in alike), default=0)
    largest = sorted((run for run in alike if run.last - run.first == most), key=lambda run: -run.first)
    before = [run for run in of_step if run.backward and run.first < backward.first]
    place = sum((run.rounds, run.length) == (backward.rounds, backward.length) for run in before)
    return largest[min(place, len(largest) - 1)] if largest else None


def _share_in_need(facts: Facts, ops: HostSpans, some: list[_Run]) -> float | None:
    """Of what rounds compute the share that needs the round before, the mean; None where it is not known of any."""
    flow = optional(dataflow, facts)
    if flow is None:
        return None
    number, shares = facts.rank.ops["sequence"], []
    for run in some:
        begins = number.reindex(ops.ids[run.first : run.last : run.length], fill_value=-1).to_numpy()
        if (begins >= 0).all() and (share := flow.needs(run.step, begins.tolist())) is not None:
            shares.append(share)
    return sum(shares) / len(shares) if shares else None


def apart_in_time(loops: list[Loop]) -> tuple[Loop, ...]:
    """Loops, sorted largest first, but those that mostly run within an earlier one: found again from another op."""
    kept: list[Loop] = []
    for loop in loops:
        within = (
            intervals.intersect(times, larger).total
            for track, times in loop.pieces
            for other in kept
            for other_track, larger in other.pieces
            if track == other_track
        )
        if sum(within) < ONE_LOOP * sum(times.total for _, times in loop.pieces):
            kept.append(loop)
    return tuple(kept)


def _within_one_op(facts: Facts, ops: HostSpans, run: _Run) -> bool:
    """Whether rounds go back through fewer calls than there are rounds, as through torch's own GRU: it loops inside."""
    spans, links = facts.rank.spans, facts.rank.links
    pairs = links[(links["kind"] == LinkKind.FORWARD_OF.value).to_numpy()]
    start, track = spans["start_ns"].to_numpy(), spans["track"].to_numpy().astype(np.int64)
    back, forward = pairs["to_id"].to_numpy(), pairs["from_id"].to_numpy()
    mine = (start[back] >= ops.start_ns[run.first]) & (start[back] < ops.end_ns[run.last - 1])
    forward = forward[mine & (track[back] == ops.track[run.first])]
    calls = intervals.innermost_at(start[forward], track[forward], ops.track, ops.start_ns, ops.end_ns)
    return bool(len(forward)) and len(np.unique(calls)) < run.rounds


def _without_backward(facts: Facts, ops: HostSpans, names: IntArray, step: IntArray) -> list[list[_Pair]]:
    """Runs that no backward pass goes through, grouped by ops of a round; without layers. Shapes may differ.

    None where a backward pass was recorded, but not what it goes back through.
    """
    layer = named(facts, ops.ids, *(f"{name}*" for name in LAYERS))
    links, start = facts.rank.links, facts.rank.spans["start_ns"].to_numpy()
    linked = links["from_id"].to_numpy()[(links["kind"] == LinkKind.FORWARD_OF.value).to_numpy()]
    track = facts.rank.spans["track"].to_numpy()[linked].astype(np.int64)
    holder = intervals.innermost_at(start[linked], track, ops.track, ops.start_ns, ops.end_ns)
    if not len(linked) and named(facts, ops.ids, f"{BACKWARD}*").any():
        return []
    own = named(facts, ops.ids, "aten::*")  # Not DDP's.
    own[holder[holder >= 0]] = False
    for one in (updates(facts), zeroings(facts), host_spans(facts, SpanKind.LOADER)):
        own &= intervals.innermost_at(ops.start_ns, ops.track, one.track, one.start_ns, one.end_ns) < 0
    at, found = np.flatnonzero(own), dict[tuple[int, ...], list[_Pair]]()
    for run in _runs(facts, ops.where(at), names[at], step[at], np.zeros(len(at), dtype=np.int64)):
        rows = at[run.first_round]
        if run.rounds >= LEAST_ROUNDS and not layer[rows].any():
            whole = replace(run, first=int(at[run.first]), last=int(at[run.last - 1]) + 1)
            if whole.last - whole.first == run.last - run.first:  # Nothing else came between.
                found.setdefault(tuple(names[rows].tolist()), []).append((whole, None))
    return list(found.values())


def _loop(facts: Facts, ops: HostSpans, again: Mask, pairs: list[_Pair]) -> Loop:
    """One loop of `pairs` of a backward run and its forward run, and the shares of its time that would be left."""
    runs = [run for pair in pairs for run in pair if run is not None]
    shown = next((forward for _, forward in pairs if forward is not None), pairs[0][0])
    names = facts.rank.spans["name"].iloc[ops.ids[shown.first_round]].astype(str).to_list()
    times = Intervals(ops.start_ns[[run.first for run in runs]], ops.end_ns[[run.last - 1 for run in runs]])
    tracks = ops.track[[run.first for run in runs]]
    edges = np.flatnonzero(np.diff(np.concatenate(([-1], np.where(again, ops.track, -1), [-1]))))
    first, last = edges[:-1][again[edges[:-1]]], edges[1:][again[edges[:-1]]] - 1
    known = intervals.union(Intervals(ops.start_ns[first], ops.end_ns[last]))
    elsewhere = intervals.merge(host_activities(facts)[TimeCause.OTHER_RANK], known)
    pieces = tuple(
        (thread, intervals.subtract(intervals.union_of(times, tracks == thread), elsewhere))
        for thread in np.unique(tracks).tolist()
    )
    rounds = round(float(np.median([(forward or run).rounds for run, forward in pairs])))
    rounds_of = np.concatenate([np.arange(run.first, run.last) for run in runs])
    counted = ops.where(rounds_of[~again[rounds_of]])
    total, own = sum(times.total for _, times in pieces), counted.end_ns - counted.start_ns - _added_up(facts, counted)
    python = 0 if any(run.backward for run in runs) else _python_between(counted, pieces)
    fixed, small = (
        total - python - int((own - np.minimum(own, most)).sum()) if trains_on_cpu(facts) else total - python
        for most in (OP_NS, LARGE_NS)
    )
    # Ops of a round that are not fused with others, and the rows of others that these leave.
    stays = np.array([name.startswith(_STAY) for name in names], dtype=bool)
    stay, rows = int(stays.sum()), int((~stays & np.append(True, stays[:-1])).sum())
    work = device_work(facts)
    inside = launched_in(facts, _spans(pieces)) >= 0
    work_ns = (work.end_ns - work.start_ns)[inside]
    spared, used, first_op = 1 - 1 / rounds, steps(facts), ops.where(np.array([shown.first]))
    whole, track = Intervals(first_op.start_ns, ops.end_ns[[shown.last - 1]]), int(first_op.track[0])
    return Loop(
        ops=tuple(names),
        has_backward=any(run.backward for run in runs),
        rounds=rounds,
        site=None if shown.backward else first_of_function(facts, sites_of(facts, first_op.ids)[0], whole, track),
        pieces=pieces,
        work_ids=work.ids[inside],
        ns=round_half_up(total, used.count),
        fixed_ns=round_half_up(fixed, used.count),
        left=1 - spared * fixed / max(total, 1),
        least_left=1 - spared * small / max(total, 1),
        work_left=1 - spared * int(np.minimum(work_ns, KERNEL_NS).sum()) / max(int(work_ns.sum()), 1),
        in_need=_share_in_need(facts, ops, [forward for _, forward in pairs if forward is not None]),
        in_turn_left=1 - (1 - (stay + rows) / len(names)) * fixed / max(total, 1),
        in_turn_least=1 - (1 - max(stay, 1) / len(names)) * fixed / max(total, 1),
    )


def _computed_again(facts: Facts, ops: HostSpans) -> Mask:
    """Which ops compute what another op of the step computes too, or are the backward of such. Main thread only."""
    seen, found = optional(seen_ops, facts), np.zeros(len(ops.ids), dtype=bool)
    if seen is not None:
        again = seen.first >= 0
        again[seen.first[again]] = True
        main = np.flatnonzero(ops.track == host_threads(facts).main)
        for op, mine in inside(facts, seen, ops.where(main)).items():
            found[main[op]] = again[list(mine)].all()
        found |= np.isin(ops.ids, backward_ops(facts, ops.where(found)))
    return found


def _added_up(facts: Facts, ops: HostSpans) -> IntArray:
    """ns per op in which autograd's engine adds up gradients. Shape (ops,)."""
    every = on_training_threads(facts, host_spans(facts, SpanKind.OP))
    around = np.append(every.ids, intervals.NONE)[every.parents]
    adds = every.where(named(facts, every.ids, *_ADDS) & named(facts, around, f"{BACKWARD}*"))
    held_by = intervals.innermost_at(adds.start_ns, adds.track, ops.track, ops.start_ns, ops.end_ns)
    held, dur = held_by >= 0, adds.end_ns - adds.start_ns
    return np.bincount(held_by[held], dur[held], len(ops.ids)).astype(np.int64)


def _python_between(ops: HostSpans, pieces: tuple[tuple[int, Intervals], ...]) -> int:
    """ns of the pauses between these ops, in these times by thread, that last PYTHON_NS or more."""
    pauses = [intervals.subtract(times, ops.where(ops.track == track).times) for track, times in pieces]
    lasted = np.concatenate([pause.ends - pause.starts for pause in pauses])
    return int(lasted[lasted >= PYTHON_NS].sum())


def _spans(pieces: tuple[tuple[int, Intervals], ...]) -> HostSpans:
    """The pieces of all threads as spans without ids, in order of start."""
    starts = np.concatenate([times.starts for _, times in pieces])
    ends = np.concatenate([times.ends for _, times in pieces])
    track = np.repeat([one for one, _ in pieces], [times.size for _, times in pieces]).astype(np.int64)
    order = np.argsort(starts, kind="stable")
    return HostSpans(np.full(len(starts), -1), starts[order], ends[order], track[order])
