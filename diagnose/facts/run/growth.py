"""Do steps get longer from one to the next, and what in them grows: graphs, counts, sizes, or time?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from enum import Enum
from itertools import combinations
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import BACKWARD, Inputs, Mask, Shape, Work, inputs_read, name_codes, name_of, work_of
from diagnose.facts.core.run import manifest
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in, on_training_threads, sites_of, used_step
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.run.step_table import time_by_step
from diagnose.facts.run.timed_steps import uneven
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.varying import VaryingShapes, varying_shapes

LEAST_STEPS = 4  # Steps, from which on a count tells whether it rises in each (our choice).
RARE = 0.01  # Chance of a rise that is taken for one: of counts, which vary by what steps do (our choice).

SURE_OF_MOST = 0.05
"""The same of what steps spend their time on, once it is known that they do get longer (our choice)."""

MOST_SHARE = 0.5  # Of what each step is more than the one before: what grows by that is why (our choice).

EVEN = 0.5
"""Of the usual rise, by so much at least a count or size that piles up rises in each step; one that varies does not
(our choice)."""

LEAST_SIZES, SURE_SIZES = 3, 5
"""Steps, from which on sizes tell whether they rise evenly; and are no chance if they rise by the same in each (our
choice)."""

WITNESSES, DOUBLED = 2, 2
"""Of four, that tell what piles up from batches that happen to be larger (our choice): it rises by the same in each
step; it did over SURE_SIZES; it has at least doubled since the run began, at this rate; steps surely get longer."""


class Count(str, Enum):
    """What is counted in each recorded step."""

    NODES = "backward nodes"
    OPS = "ops of the forward pass"
    WORK = "kernels and copies"


class Measured(str, Enum):
    """What is more in each step."""

    TIME = "time"
    OPS = "ops"
    WORK = "kernels and copies"
    SIZES = "sizes"


class Kept(Struct, frozen=True):
    """The graph of steps long ago, which backward passes go through again."""

    count: Trend  # Its nodes, by recorded step.
    nodes: Trend  # All that backward passes run.
    forward: tuple[int, int]  # Fewest and most ops of a step outside of backward passes.
    work: Work  # What it takes to go through it.
    op: str  # The outermost op that made the last of it, in the step before; "" if that is not recorded.
    site: Site | None


class Grows(Struct, frozen=True):
    """What there is more of in each step, or what takes longer, or takes more."""

    measured: Measured
    names: tuple[str, ...]  # Of ops, those that take longest first; none: Python between ops.
    rise: Trend
    """How many there are in each used step, or their ns; of a size, how far it reaches in each step of `inputs`."""
    at_start: float  # The same when the run began, if it rose by as much in each step since; below 0: it did not.
    left: float  # Share of it that there was when the run began; 0 if it rose only later.
    work: Work | None  # None of Python.
    times: Intervals  # When Python ran, if it is that, or between two of the ops that become more, on the main thread.
    track: int
    site: Site | None
    """Where most of its time goes; of ops of a backward pass that of the ops that made them. Of sizes that of the op
    that is named."""
    inputs: tuple[Shape, ...] = ()  # Of sizes: what the op takes, in each step that shapes are recorded of.

    @property
    def from_start(self) -> bool:
        """Whether it can have risen so since the run began; to a step, as that is where steps are counted from."""
        return self.at_start >= -self.rise.each

    @property
    def in_backward(self) -> bool:
        """Whether backward passes run some of it."""
        return any(name.startswith(BACKWARD) for name in self.names)

    @property
    def in_forward(self) -> bool:
        """Whether anything else does."""
        return not all(name.startswith(BACKWARD) for name in self.names)


class Growth(Struct, frozen=True):
    """How steps change over the recording."""

    time: Trend | None
    """ns of each step without the profiler, of as much work each; None unless they surely get longer."""
    counts: dict[Count, Trend]  # What surely rises from step to step.
    kept: Kept | None
    grows: tuple[Grows, ...]
    """What most of it is, told by counts, sizes and time; none where `kept` is why, and where nothing stands out."""


@fact
def growth(facts: Facts) -> Growth:
    """Raises Missing with fewer than LEAST_STEPS recorded steps, and without marked ones."""
    if len(facts.rank.steps) < LEAST_STEPS or steps(facts).measure is Measure.WINDOW:
        raise Missing("four steps or more", "Raise `active` in torch.profiler.schedule, and call prof.step().")
    counts = {count: rise for count, values in _counts(facts).items() if (rise := trend(values)).chance <= RARE}
    kept, time = _kept(facts), _time(facts)
    return Growth(time, counts, kept, () if kept else _grows(facts, counts, time is not None))


def _time(facts: Facts) -> Trend | None:
    """Of the steps timed before and after the recording; of whole cycles, where some steps are long at a period."""
    known = optional(manifest, facts)
    if known is None or known.unprofiled is None or uneven(facts) is not None:
        return None
    series, cycle = [known.unprofiled, *filter(None, [known.unprofiled_after])], known.cycle
    number = np.concatenate([one.first_step + np.arange(len(one.wall_ns)) for one in series])
    first = [k for k in range(0, len(number) - cycle + 1, cycle) if number[k + cycle - 1] - number[k] < cycle]
    at = number[first].tolist()

    def cycles(*times: Sequence[int]) -> list[float]:
        """The mean step of each; none where times are not known of each step."""
        values = np.concatenate(times)
        return [float(values[k : k + cycle].mean()) for k in first] if len(values) == len(number) else []

    device, cpu = cycles(*(one.device_ns or () for one in series)), cycles(*(one.cpu_times_ns for one in series))
    times = device or cycles(*(one.wall_ns for one in series))
    if len(times) < LEAST_STEPS:
        return None
    found, length = trend(times, at), at[-1] - at[0]
    if found.chance > RARE_TIME or found.each * length < RISE * np.median(times):
        return None
    # A machine that others use makes steps longer, and no more to compute.
    if not device and cpu and trend(cpu, at).chance > RARE_TIME:
        return None
    # The ends of a line of its slope through the median time: single times vary by more than a step adds.
    begin = float(np.median(np.array(times) - found.each * (np.array(at) - at[0])))
    return replace(found, first=begin, last=begin + found.each * length)


def _counts(facts: Facts) -> dict[Count, list[int]]:
    """In each recorded step but the last, which may be cut off."""
    found, nodes, work = dict[Count, IntArray](), optional(backward_nodes, facts), device_work(facts)
    if nodes is not None:
        spans = {Count.NODES: nodes.spans, Count.OPS: forward_ops(facts)[0]}
        found = {count: _step_of(facts, one.start_ns) for count, one in spans.items()}
    if len(work.ids):
        found[Count.WORK] = work.step
    every = len(facts.rank.steps)
    return {count: np.bincount(step[step >= 0], minlength=every)[:-1].tolist() for count, step in found.items()}


def _step_of(facts: Facts, times: IntArray) -> IntArray:
    """Position of the recorded step that has begun last, -1 before the first."""
    return np.searchsorted([one.start_ns for one in facts.rank.steps], times, side="right") - 1


def _kept(facts: Facts) -> Kept | None:
    """Nodes carry the number that the thread which made them had counted up to: it tells in which step that was.

    None unless there are more of them in each step, from steps before the last one too: what is carried over once, as
    where a step ends between forward and backward pass, does not grow.
    """
    nodes = optional(backward_nodes, facts)
    if nodes is None:
        return None
    ops, main, table = host_spans(facts, SpanKind.OP), host_threads(facts).main, facts.rank.ops
    number, thread = (table[one].reindex(ops.ids, fill_value=-1).to_numpy() for one in ("sequence", "forward_thread"))
    forward = (ops.track == main) & (number >= 0) & (thread <= 0)
    made, number = ops.where(forward), number[forward]
    first = np.searchsorted(made.start_ns, [one.start_ns for one in facts.rank.steps])
    if first[-1] == len(number):
        return None
    least, last = number[first], len(first) - 1
    own, step = (
        table["sequence"].reindex(nodes.spans.ids, fill_value=-1).to_numpy(),
        _step_of(facts, nodes.spans.start_ns),
    )
    old = (own >= 0) & ~nodes.adds & (step >= 0) & (own < least[step])

    def per_step(step: IntArray) -> list[int]:
        """In each recorded step from the second to the last."""
        counts: list[int] = np.bincount(step[step > 0], minlength=last + 1)[1:].tolist()
        return counts

    counts = per_step(step[old & (step > 0) & (own < least[step - 1])])
    if (np.diff(counts) <= 0).any():
        return None
    maker = made.where(number <= int(own[old & (step == last)].max())).ids[-1:]
    tops = ops.where(ops.track == main).outermost()
    maker = tops.ids[np.searchsorted(tops.ids, maker, side="right") - 1]
    others = per_step(_step_of(facts, forward_ops(facts)[0].start_ns))
    return Kept(
        count=trend(counts),
        nodes=trend(per_step(step)),
        forward=(min(others), max(others)),
        work=work_of(facts, nodes.spans.ids[old]),
        op=name_of(facts, int(maker[0])) if len(maker) else "",
        site=sites_of(facts, maker)[0] if len(maker) else None,
    )


def _grows(facts: Facts, counts: Collection[Count], longer: bool) -> tuple[Grows, ...]:
    """By counts where they rise, by sizes, and by time where steps get `longer` by something else than that."""
    measured = Measured.WORK if set(counts) == {Count.WORK} else Measured.OPS
    found = list[Grows]()
    for one in (
        what_grows(facts, measured) if counts else None,
        growing_sizes(facts, longer),
        what_grows(facts, Measured.TIME) if longer else None,
    ):
        known = np.concatenate([np.zeros(0, dtype=np.int64), *(other.work.ids for other in found if other.work)])
        if one and not (one.work and np.isin(one.work.ids, known).any()):
            found.append(one)
    return tuple(found)


Table: TypeAlias = "Callable[[IntArray], IntArray]"
"""By the label of each op, from 0, what is measured. Shape (labels, used steps); of times the last row is Python."""


def what_grows(facts: Facts, measured: Measured) -> Grows | None:
    """The ops of one line, else of one name, that most of the rise is; of counts, else all ops that become more.

    None where nothing stands out. Raises Missing like `steps`.
    """
    used = steps(facts)
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    if used.count < LEAST_STEPS or not len(ops.ids):
        return None
    sites, codes = _sites_by_maker(facts, ops), name_codes(facts, ops.ids).tolist()
    line, name = _numbers(site or code for site, code in zip(sites, codes, strict=True)), _numbers(codes)
    python, groups, more = intervals.gaps(ops.times, used.start_ns, used.end_ns), [line, name], line >= 0
    if measured is Measured.TIME:
        table, whole, even = _time_table(facts, ops, python), used.times_ns, -np.inf
    else:
        every, kind = _count_table(facts, ops, measured, more), _numbers(zip(line.tolist(), name.tolist(), strict=True))
        more = np.array([trend(row).each > 0 for row in every(kind).tolist()])[kind]
        groups.append(np.zeros_like(line))
        table, whole, even = _count_table(facts, ops, measured, more), every(groups[-1])[0], EVEN
    least = max(MOST_SHARE * trend(whole.tolist()).each, 1.0)
    for group in groups:
        rows = table(group)
        rises = [trend(row) for row in rows.tolist()]
        most = int(np.argmax([rise.each for rise in rises]))
        rise = rises[most]
        if rise.chance <= SURE_OF_MOST and rise.each >= least and np.diff(rows[most]).min() >= even * rise.each:
            mine = np.flatnonzero(more & (group == most))
            at = _numbers(sites[one] for one in mine)
            ns = np.bincount(at, ops.end_ns[mine] - ops.start_ns[mine])
            site = sites[mine[ns[at].argmax()]] if len(mine) else None
            return _made(facts, measured, rise, ops.where(mine), python, site)
    return None


def _made(facts: Facts, measured: Measured, rise: Trend, ops: HostSpans, python: Intervals, site: Site | None) -> Grows:
    used, main = steps(facts), host_threads(facts).main
    mean, before = max((rise.first + rise.last) / 2, 1.0), used.numbers[0] + (used.count - 1) / 2
    mine = ops.where(ops.track == main)
    between = np.isin(python.starts, mine.end_ns) & np.isin(python.ends, mine.start_ns)
    return Grows(
        measured=measured,
        names=_longest_names(facts, ops),
        rise=rise,
        at_start=mean - rise.each * before,
        left=max(1 - rise.each * before / mean, 0.0),
        work=work_of(facts, ops.ids) if len(ops.ids) else None,
        times=python.where(between) if len(ops.ids) else python,
        track=main,
        site=site,
    )


def _time_table(facts: Facts, ops: HostSpans, python: Intervals) -> Table:
    starts, ends = (np.concatenate(both) for both in ((ops.start_ns, python.starts), (ops.end_ns, python.ends)))

    def table(label: IntArray) -> IntArray:
        last = int(label.max()) + 1
        return time_by_step(facts, Intervals(starts, ends), np.append(label, np.full(python.size, last)), last + 1)

    return table


def _count_table(facts: Facts, ops: HostSpans, measured: Measured, chosen: Mask) -> Table:
    at = launched_in(facts, ops) if measured is Measured.WORK else np.arange(len(ops.ids))
    step, count = used_step(facts, ops.ids), steps(facts).count
    at = at[(at >= 0) & chosen[at] & (step[at] >= 0)]

    def table(label: IntArray) -> IntArray:
        rows = int(label.max()) + 1
        return np.bincount(label[at] * count + step[at], minlength=rows * count).reshape(rows, count)

    return table


def _sites_by_maker(facts: Facts, ops: HostSpans) -> list[Site | None]:
    """The line that led to each op; to one of a backward pass, that of the op that made it."""
    made_by = dict[int, int]()
    nodes = optional(backward_nodes, facts)
    if nodes is not None:
        forward, _ = forward_ops(facts)
        maker, node = nodes_of(facts, forward)
        made_by = dict(zip(nodes.spans.ids[node].tolist(), forward.ids[maker].tolist(), strict=True))
    return sites_of(facts, np.array([made_by.get(one, one) for one in ops.ids.tolist()], dtype=np.int64))


def _numbers(keys: Iterable[Hashable]) -> IntArray:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def _longest_names(facts: Facts, ops: HostSpans) -> tuple[str, ...]:
    codes, at = np.unique(name_codes(facts, ops.ids), return_inverse=True)
    ns = np.bincount(at, ops.end_ns - ops.start_ns, minlength=len(codes))
    return tuple(str(facts.rank.spans["name"].cat.categories[code]) for code in codes[np.argsort(-ns, kind="stable")])


class _Larger(Struct, frozen=True):
    """An input that is larger in each step, and the extent of it that is."""

    shapes: tuple[Shape, ...]
    rise: Trend
    at_start: float
    adds: bool  # Whether the op joins tensors to one as large as what it takes in the next step.

    @property
    def order(self) -> tuple[bool, int]:
        """Later is what tells more of it."""
        return self.adds, prod(self.shapes[-1])


def growing_sizes(facts: Facts, longer: bool) -> Grows | None:
    """All ops with inputs that are larger in each step; `longer`: steps surely take longer.

    It is told of the op that adds to what grows, else of the first one in a step. None if nothing grows, and without
    shapes of LEAST_SIZES consecutive steps.
    """
    varying, used = _varying(facts), steps(facts)
    if varying is None:
        return None
    found = [_larger([inputs_read(one, "") for one in row], varying.steps, longer) for row in varying.shapes]
    tops = on_training_threads(facts, host_spans(facts, SpanKind.OP)).outermost()
    start, track = (facts.rank.spans[one].to_numpy()[varying.ids].astype(np.int64) for one in ("start_ns", "track"))
    inside = intervals.innermost_at(start, track, tops.track, tops.start_ns, tops.end_ns).tolist()
    of_top = dict[int, _Larger]()
    for top, row in zip(inside, varying.which.tolist(), strict=True):
        if top >= 0 and (one := found[row]) is not None:
            of_top[top] = max(of_top.get(top, one), one, key=lambda known: known.order)
    if not of_top:
        return None
    mine = np.array(sorted(of_top))
    shown = next((top for top in mine.tolist() if of_top[top].adds), int(mine[0]))
    told, ops, now = of_top[shown], tops.where(mine), used.numbers[0] + (used.count - 1) / 2
    left = [max(one.at_start, 0.0) / max(one.at_start + one.rise.each * now, 1.0) for _, one in sorted(of_top.items())]
    return Grows(
        measured=Measured.SIZES,
        names=(name_of(facts, int(tops.ids[shown])),),
        rise=told.rise,
        at_start=told.at_start,
        left=float(np.average(left, weights=ops.end_ns - ops.start_ns + 1)),
        work=work_of(facts, ops.ids),
        times=intervals.EMPTY,
        track=int(tops.track[shown]),
        site=_sites_by_maker(facts, tops.where(np.array([shown])))[0],
        inputs=told.shapes,
    )


def _varying(facts: Facts) -> VaryingShapes | None:
    rank, numbers = facts.rank, tuple(step.number for step in facts.rank.steps)
    own = rank.varying is None and "shapes" in rank.provenance.recorded
    found = varying_shapes(rank.spans, rank.ops, numbers) if own else rank.varying
    if found is None or len(found.steps) < LEAST_SIZES or set(np.diff(found.steps).tolist()) != {1}:
        return None
    return found


def _larger(by_step: Sequence[Inputs], numbers: Sequence[int], longer: bool) -> _Larger | None:
    found = list[_Larger]()
    for lists in zip(*by_step, strict=False):
        if len({len(tensors) for tensors in lists}) > 1:
            continue
        for tensors in zip(*lists, strict=True):
            shapes = tuple(one.shape for one in tensors)
            if len({len(shape) for shape in shapes}) > 1 or (np.diff([*map(prod, shapes)]) <= 0).any():
                continue
            for along, extents in enumerate(zip(*shapes, strict=True)):
                rise = trend(extents)
                at_start = rise.first - rise.each * numbers[0]
                if _piles_up(extents, rise.each, at_start, longer):
                    # Put one after the other, tensors of a list reach so far.
                    joined = [sum(one.shape[along] for one in some if len(one.shape) > along) for some in lists]
                    found.append(_Larger(shapes, rise, at_start, tuple(joined[:-1]) == extents[1:]))
    return max(found, key=lambda one: one.order, default=None)


def _piles_up(extents: Sequence[int], each: float, at_start: float, longer: bool) -> bool:
    rises = np.diff(extents)
    if rises.min() <= 0 or rises.min() < EVEN * each:
        return False
    equal = bool(rises.min() == rises.max())
    doubled = -each <= at_start and DOUBLED * at_start <= extents[0]
    return sum((equal, equal and len(extents) >= SURE_SIZES, doubled, longer)) >= WITNESSES


RARE_TIME = 0.001
"""Chance of a rise that is taken for one: of times, which vary by what else the machine does (our choice)."""

RISE = 0.1  # Of the beginning, or of the median, by so much at least what grows is more at the end (our choice).


class Trend(Struct, frozen=True):
    """How values change with their position."""

    first: float
    last: float
    each: float  # From one to the next: the median of the slopes between all pairs (Theil and Sen).
    chance: float  # That values in an order of no meaning would rise as often: the exact distribution of Kendall's tau.


def trend(values: Sequence[float], at: Sequence[int] = ()) -> Trend:
    """Of one value at least, at these positions or one after the other. Equal values count as if they fell.

    How many pairs of n values fall, in an order of no meaning, is the sum of independent uniform numbers below 1, 2,
    ..., n (Kendall 1938).

    >>> trend([3, 4, 5, 7])
    Trend(first=3, last=7, each=1.2..., chance=0.041...)
    """
    at = at or range(len(values))
    slopes = [(values[b] - values[a]) / (at[b] - at[a]) for a, b in combinations(range(len(values)), 2)]
    falls = sum(slope <= 0 for slope in slopes)
    share = np.ones(1)
    for count in range(2, len(values) + 1):
        share = np.convolve(share, np.full(count, 1 / count))
    return Trend(values[0], values[-1], float(np.median(slopes or 0.0)), float(share[: falls + 1].sum()))
