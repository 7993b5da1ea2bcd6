"""Do steps get longer from one to the next, and what in them grows?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, forward_ops
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.names import name_of
from diagnose.facts.core.run import manifest
from diagnose.facts.core.shaped import Work, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import host_spans
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.run.growing_sizes import growing_sizes
from diagnose.facts.run.slowdown import uneven
from diagnose.facts.run.trend import Trend, trend
from diagnose.facts.run.what_grows import LEAST_STEPS, Grows, Measured, what_grows
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

RARE = 0.01
"""Chance of a rise that is taken for one: of counts, which vary by what steps do (our choice)."""

RARE_TIME = 0.001
"""The same of times, which vary by what else the machine does (our choice)."""

RISE = 0.1
"""Of the median step, by so much at least the last timed step is longer than the first (our choice)."""


class Count(str, Enum):
    """What is counted in each recorded step."""

    NODES = "backward nodes"
    OPS = "ops of the forward pass"
    WORK = "kernels and copies"


@dataclass(frozen=True)
class Kept:
    """The graph of steps long ago, which backward passes go through again."""

    count: Trend
    """Its nodes, by recorded step."""
    nodes: Trend
    """All that backward passes run."""
    forward: tuple[int, int]
    """Fewest and most ops of a step outside of backward passes."""
    work: Work
    """What it takes to go through it."""
    op: str
    """The outermost op that made the last of it, in the step before; "" if that is not recorded."""
    site: Site | None


@dataclass(frozen=True)
class Rise:
    """Something that is more in each step, in brief."""

    what: str
    """A word of `Count`, or "time"."""
    first: float
    """ns of a time."""
    last: float
    each: float
    """More in each step than in the one before."""


@dataclass(frozen=True)
class Growth:
    """How steps change over the recording."""

    time: Trend | None
    """ns of each step without the profiler, of as much work each; None unless they surely get longer."""
    counts: dict[Count, Trend]
    """What surely rises from step to step."""
    kept: Kept | None
    grows: tuple[Grows, ...]
    """What most of it is, told by counts, sizes and time; none where `kept` is why, and where nothing stands out."""

    @property
    def rises(self) -> tuple[Rise, ...]:
        """All that rises, what is counted first."""
        known = {one.value: rise for one, rise in self.counts.items()} | ({"time": self.time} if self.time else {})
        return tuple(Rise(what, one.first, one.last, one.each) for what, one in known.items())


@fact
def growth(facts: Facts) -> Growth:
    """Raises Missing with fewer than LEAST_STEPS recorded steps, and without marked ones."""
    marks = facts.rank.steps
    if len(marks) < LEAST_STEPS or steps(facts).measure is Measure.WINDOW:
        raise Missing("four steps or more", "Raise `active` in torch.profiler.schedule, and call prof.step().")
    kept, time = _kept(facts), _time(facts)
    counted = {count: trend(values) for count, values in _counts(facts).items()}
    counts = {count: one for count, one in counted.items() if one and one.chance <= RARE}
    return Growth(
        time=time,
        counts=counts,
        kept=kept,
        grows=() if kept else _grows(facts, counts, time is not None),
    )


def _time(facts: Facts) -> Trend | None:
    known = optional(manifest, facts)
    alone = None if known is None else known.unprofiled
    if alone is None or uneven(facts) is not None or known is None or known.cycle > 1:
        return None
    times = alone.device_ns or alone.wall_ns
    found = _risen(times)
    if found is None or found.each * (len(times) - 1) < RISE * np.median(times):
        return None
    # A machine that others use makes steps longer, and no more to compute.
    busier = bool(alone.device_ns) or not alone.cpu_times_ns or _risen(alone.cpu_times_ns) is not None
    return _along_its_line(found, times) if busier else None


def _along_its_line(found: Trend, times_ns: Sequence[int]) -> Trend:
    """The ends of a line of its slope through the median time: single times vary by more than a step adds."""
    begin = float(np.median(np.array(times_ns) - found.each * np.arange(len(times_ns))))
    return replace(found, first=begin, last=begin + found.each * (len(times_ns) - 1))


def _risen(times_ns: Sequence[int]) -> Trend | None:
    found = trend(times_ns)
    return found if found is not None and found.chance <= RARE_TIME else None


def _counts(facts: Facts) -> dict[Count, list[int]]:
    """In each recorded step but the last, which may be cut off."""
    found, nodes, work = dict[Count, IntArray](), optional(backward_nodes, facts), device_work(facts)
    begins, last = [one.start_ns for one in facts.rank.steps], len(facts.rank.steps) - 1

    if nodes is not None:
        spans = {Count.NODES: nodes.spans, Count.OPS: forward_ops(facts)[0]}
        found = {count: np.searchsorted(begins, one.start_ns, side="right") - 1 for count, one in spans.items()}
    if len(work.ids):
        found[Count.WORK] = work.step
    return {count: np.bincount(step[step >= 0], minlength=last + 1)[:-1].tolist() for count, step in found.items()}


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
    begins = np.array([one.start_ns for one in facts.rank.steps])
    first = np.searchsorted(made.start_ns, begins)
    if first[-1] == len(number):
        return None
    least, last = number[first], len(begins) - 1
    own = table["sequence"].reindex(nodes.spans.ids, fill_value=-1).to_numpy()
    step = np.searchsorted(begins, nodes.spans.start_ns, side="right") - 1
    known = (own >= 0) & ~nodes.adds & (step >= 0)
    old = known & (own < least[step])
    counts = _per_step(step[old & (step > 0) & (own < least[step - 1])], last)
    risen, every = trend(counts), trend(_per_step(step[step > 0], last))
    if risen is None or every is None or (np.diff(counts) <= 0).any():
        return None
    carried = int(own[old & (step == last)].max())
    maker = made.where(number <= carried).ids[-1:]
    tops = ops.where(ops.track == main).outermost()
    maker = tops.ids[np.searchsorted(tops.ids, maker, side="right") - 1]
    others = _per_step(np.searchsorted(begins, forward_ops(facts)[0].start_ns, side="right") - 1, last)
    return Kept(
        count=risen,
        nodes=every,
        forward=(min(others), max(others)),
        work=work_of(facts, nodes.spans.ids[old]),
        op=name_of(facts, int(maker[0])) if len(maker) else "",
        site=sites_of(facts, maker)[0] if len(maker) else None,
    )


def _per_step(step: IntArray, last: int) -> list[int]:
    """How many there are in each recorded step from the second to the last, by position."""
    counts: list[int] = np.bincount(step[step > 0], minlength=last + 1)[1:].tolist()
    return counts


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
