"""What is more in each step than in the one before: of ops, of work on the device, of sizes, or of time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from enum import Enum
from functools import partial
from itertools import combinations
from math import prod

import numpy as np
from msgspec import Struct

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import BACKWARD, Inputs, Shape, Work, inputs_read, name_codes, name_of, work_of
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in, on_training_threads, sites_of, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.run.pauses import time_by_step
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.model import VaryingShapes
from diagnose.trace.sampling import varying_shapes

RARE_TIME = 0.001  # Chance of a rise that is taken for one: of times, which vary by what else the machine does. Chosen.

RISE = 0.1  # Of the beginning, or of the median, by so much at least what grows is more at the end (our choice).


class Trend(Struct, frozen=True):
    """How values change with their position."""

    first: float
    last: float
    each: float  # From one to the next: the median of the slopes between all pairs (Theil and Sen).
    chance: float  # That values in an order of no meaning would rise as often: the exact distribution of Kendall's tau.


def trend(values: Sequence[float], at: Sequence[int] = ()) -> Trend:
    """The trend of values, one at least, at positions `at`, else 0, 1, ... Equal values count as if they fell.

    How many pairs of n values fall, in an order of no meaning, is the sum of independent uniform numbers below 1, 2,
    ..., n (Kendall 1938).

    >>> trend([3, 4, 5, 7])
    Trend(first=3, last=7, each=1.16..., chance=0.041...)
    """
    at = at or range(len(values))
    slopes = [(values[b] - values[a]) / (at[b] - at[a]) for a, b in combinations(range(len(values)), 2)]
    falls = sum(slope <= 0 for slope in slopes)
    share = np.ones(1)
    for count in range(2, len(values) + 1):
        share = np.convolve(share, np.full(count, 1 / count))
    return Trend(values[0], values[-1], float(np.median(slopes or 0.0)), float(share[: falls + 1].sum()))


LEAST_STEPS = 4  # Steps, from which on a count tells whether it rises in each (our choice).
SURE_OF_MOST = 0.05  # The same of what steps spend time on, once it is known that they do get longer. Chosen.

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


class Measured(str, Enum):
    """What is more in each step."""

    TIME = "time"
    OPS = "ops"
    WORK = "kernels and copies"
    SIZES = "sizes"


class Grows(Struct, frozen=True):
    """What there is more of in each step, or what takes longer, or takes more."""

    measured: Measured
    names: tuple[str, ...]  # Of ops, those that take longest first; none: Python between ops.
    rise: Trend  # How many in each used step, or their ns; of a size, how far it reaches in each step of `inputs`.
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
        """Whether it can have risen at this rate since the run began: at most one step's rise below 0 there."""
        return self.at_start >= -self.rise.each

    @property
    def in_backward(self) -> bool:
        """Whether backward passes run some of it."""
        return any(name.startswith(BACKWARD) for name in self.names)

    @property
    def in_forward(self) -> bool:
        """Whether anything but backward passes runs some of it."""
        return not all(name.startswith(BACKWARD) for name in self.names)


def what_grows(facts: Facts, measured: Measured) -> Grows | None:
    """The ops of one line, or else of one name, that are MOST_SHARE of the rise; of counts, else all ops that rise.

    `measured` is TIME, OPS or WORK. None where nothing stands out. Raises Missing like `steps`.
    """
    used = steps(facts)
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    if used.count < LEAST_STEPS or not len(ops.ids):
        return None
    sites, codes = _sites_by_maker(facts, ops), name_codes(facts, ops.ids).tolist()
    line, name = _numbers(site or code for site, code in zip(sites, codes, strict=True)), _numbers(codes)
    python, groups, more = intervals.gaps(ops.times, used.start_ns, used.end_ns), [line, name], line >= 0
    if measured is Measured.TIME:
        table, whole, even = partial(_time_by_label, facts, ops, python), used.times_ns, -np.inf
    else:
        at = launched_in(facts, ops) if measured is Measured.WORK else np.arange(len(line))
        step = used_step(facts, ops.ids)
        at, of_step = at[(at >= 0) & (step[at] >= 0)], partial(_count_by_label, step, used.count)
        kind = _numbers(zip(line.tolist(), name.tolist(), strict=True))
        more = np.array([trend(row).each > 0 for row in of_step(at, kind).tolist()])[kind]
        groups.append(np.zeros_like(line))
        table, whole, even = partial(of_step, at[more[at]]), of_step(at, groups[-1])[0], EVEN
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
    """What grows in these ops, with its size at the run's start and the share left without growth."""
    used, main = steps(facts), host_threads(facts).main
    mean, before = max((rise.first + rise.last) / 2, 1.0), used.numbers[0] + (used.count - 1) / 2
    on_main = ops.where(ops.track == main)
    between = np.isin(python.starts, on_main.end_ns) & np.isin(python.ends, on_main.start_ns)
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


def _time_by_label(facts: Facts, ops: HostSpans, python: Intervals, label: IntArray) -> IntArray:
    """Time in ops by their label, from 0, and in Python last. Shape (labels + 1, used steps)."""
    starts, ends = (np.concatenate(both) for both in ((ops.start_ns, python.starts), (ops.end_ns, python.ends)))
    last = int(label.max()) + 1
    return time_by_step(facts, Intervals(starts, ends), np.append(label, np.full(python.size, last)), last + 1)


def _count_by_label(step: IntArray, count: int, at: IntArray, label: IntArray) -> IntArray:
    """How many of the ops at `at` have each label, from 0, in each of `count` steps. Shape (labels, count)."""
    rows = int(label.max()) + 1
    return np.bincount(label[at] * count + step[at], minlength=rows * count).reshape(rows, count)


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
    """The distinct names of the ops, those with most host time first."""
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
        """Sort key; of the largest: an op that adds to what grows is preferred, then the larger input."""
        return self.adds, prod(self.shapes[-1])


def growing_sizes(facts: Facts, longer: bool) -> Grows | None:
    """All ops with inputs that are larger in each step; `longer`: steps surely take longer.

    Name, rise and line are of the op that adds to what grows, else of the first such op. None if nothing grows, and
    without shapes of LEAST_SIZES consecutive steps.
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
    """Inputs whose shapes differ from step to step; None unless enough consecutive steps have them."""
    rank, numbers = facts.rank, tuple(step.number for step in facts.rank.steps)
    own = rank.varying is None and "shapes" in rank.provenance.recorded
    found = varying_shapes(rank.spans, rank.ops, numbers) if own else rank.varying
    if found is None or len(found.steps) < LEAST_SIZES or set(np.diff(found.steps).tolist()) != {1}:
        return None
    return found


def _larger(by_step: Sequence[Inputs], numbers: Sequence[int], longer: bool) -> _Larger | None:
    """The input dimension that grows in every step; of several the last by `_Larger.order`. None if none grows."""
    growing = list[_Larger]()
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
                    growing.append(_Larger(shapes, rise, at_start, tuple(joined[:-1]) == extents[1:]))
    return max(growing, key=lambda one: one.order, default=None)


def _piles_up(extents: Sequence[int], each: float, at_start: float, longer: bool) -> bool:
    """Whether a dimension accumulates data: it grows in each step, and enough of four signs agree."""
    rises = np.diff(extents)
    if rises.min() <= 0 or rises.min() < EVEN * each:
        return False
    equal = bool(rises.min() == rises.max())
    doubled = -each <= at_start and DOUBLED * at_start <= extents[0]
    return sum((equal, equal and len(extents) >= SURE_SIZES, doubled, longer)) >= WITNESSES
