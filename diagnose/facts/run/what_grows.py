"""What is it that there is more of in each step, or that takes longer, and where is it run?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np

from diagnose.facts.autograd.backward import backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import Mask
from diagnose.facts.core.names import BACKWARD, name_codes
from diagnose.facts.core.shaped import Shape, Work, work_of
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in, on_training_threads, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.run.step_table import time_by_step
from diagnose.facts.run.trend import Trend, trend
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

LEAST_STEPS = 4
"""Steps, from which on a count tells whether it rises in each (our choice)."""

MOST_SHARE = 0.5
"""Of what each step is more than the one before: what grows by that is why (our choice)."""

EVEN = 0.5
"""Of the usual rise, by so much at least a count that piles up rises in each step; one that varies does not (our
choice)."""

SURE_OF_MOST = 0.05
"""Chance of a rise that is taken for one, of what steps spend their time on, once it is known that they do get longer
(our choice)."""

Table: TypeAlias = "Callable[[IntArray], IntArray]"
"""By the label of each op, from 0, what is measured. Shape (labels, used steps); of times the last row is Python."""


class Measured(str, Enum):
    """What is more in each step."""

    TIME = "time"
    OPS = "ops"
    WORK = "kernels and copies"
    SIZES = "sizes"


@dataclass(frozen=True)
class Grows:
    """What there is more of in each step, or what takes longer, or takes more."""

    measured: Measured
    names: tuple[str, ...]
    """Of ops, those that take longest first; none: Python between ops."""
    rise: Trend
    """How many there are in each used step, or their ns; of a size, how far it reaches in each step of `inputs`."""
    at_start: float
    """The same when the run began, if it rose by as much in each step since; below 0: it did not."""
    left: float
    """Share of it that there was when the run began; 0 if it rose only later."""
    work: Work | None
    """None of Python."""
    times: Intervals
    """When Python ran, if it is that, or between two of the ops that become more, on the main thread."""
    track: int
    site: Site | None
    """Where most of its time goes; of ops of a backward pass that of the ops that made them. Of sizes that of the op
    that is named."""
    inputs: tuple[Shape, ...] = ()
    """Of sizes: what the op takes, in each step that shapes are recorded of."""

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


def what_grows(facts: Facts, measured: Measured) -> Grows | None:
    """The ops of one line, else of one name, that most of the rise is; of counts, else all ops that become more.

    None where nothing stands out. Raises Missing like `steps`.
    """
    used = steps(facts)
    ops = on_training_threads(facts, host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)).outermost()
    if used.count < LEAST_STEPS or not len(ops.ids):
        return None
    sites, codes = sites_by_maker(facts, ops), name_codes(facts, ops.ids).tolist()
    line, name = _numbers(site or code for site, code in zip(sites, codes, strict=True)), _numbers(codes)
    python, groups, more = intervals.gaps(ops.times, used.start_ns, used.end_ns), [line, name], line >= 0
    if measured is Measured.TIME:
        table, whole, even = _times(facts, ops, python), used.times_ns, -np.inf
    else:
        every, kind = _counts(facts, ops, measured, more), _numbers(zip(line.tolist(), name.tolist(), strict=True))
        more = np.array([_rise(row).each > 0 for row in every(kind)])[kind]
        groups.append(np.zeros_like(line))
        table, whole, even = _counts(facts, ops, measured, more), every(groups[-1])[0], EVEN
    least = max(MOST_SHARE * _rise(whole).each, 1.0)
    for group in groups:
        rows = table(group)
        most = int(np.argmax([_rise(row).each for row in rows]))
        rise = _rise(rows[most])
        if rise.chance <= SURE_OF_MOST and rise.each >= least and np.diff(rows[most]).min() >= even * rise.each:
            mine = np.flatnonzero(more & (group == most))
            at = _numbers(sites[one] for one in mine)
            ns = np.bincount(at, ops.end_ns[mine] - ops.start_ns[mine])
            site = sites[mine[ns[at].argmax()]] if len(mine) else None
            return _made(facts, measured, rise, ops.where(mine), python, site)
    return None


def _made(facts: Facts, measured: Measured, rise: Trend, ops: HostSpans, python: Intervals, site: Site | None) -> Grows:
    """`ops`: none if it is `python`."""
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


def _rise(values: IntArray) -> Trend:
    """Of at least two values."""
    found = trend(values.tolist())
    assert found is not None
    return found


def _times(facts: Facts, ops: HostSpans, python: Intervals) -> Table:
    starts, ends = (np.concatenate(both) for both in ((ops.start_ns, python.starts), (ops.end_ns, python.ends)))

    def table(label: IntArray) -> IntArray:
        last = int(label.max()) + 1
        return time_by_step(facts, Intervals(starts, ends), np.append(label, np.full(python.size, last)), last + 1)

    return table


def _counts(facts: Facts, ops: HostSpans, measured: Measured, chosen: Mask) -> Table:
    at = launched_in(facts, ops) if measured is Measured.WORK else np.arange(len(ops.ids))
    step, count = used_step(facts, ops.ids), steps(facts).count
    at = at[(at >= 0) & chosen[at] & (step[at] >= 0)]

    def table(label: IntArray) -> IntArray:
        rows = int(label.max()) + 1
        return np.bincount(label[at] * count + step[at], minlength=rows * count).reshape(rows, count)

    return table


def sites_by_maker(facts: Facts, ops: HostSpans) -> list[Site | None]:
    """The line that led to each op; to one of a backward pass, that of the op that made it."""
    made_by = dict[int, int]()
    nodes = optional(backward_nodes, facts)
    if nodes is not None:
        forward, _ = forward_ops(facts)
        maker, node = nodes_of(facts, forward)
        made_by = dict(zip(nodes.spans.ids[node].tolist(), forward.ids[maker].tolist(), strict=True))
    return sites_of(facts, np.array([made_by.get(one, one) for one in ops.ids.tolist()], dtype=np.int64))


def _numbers(keys: Iterable[Hashable]) -> IntArray:
    """A number from 0 for each, equal for equal ones."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def _longest_names(facts: Facts, ops: HostSpans) -> tuple[str, ...]:
    codes, at = np.unique(name_codes(facts, ops.ids), return_inverse=True)
    ns = np.bincount(at, ops.end_ns - ops.start_ns, minlength=len(codes))
    return tuple(str(facts.rank.spans["name"].cat.categories[code]) for code in codes[np.argsort(-ns, kind="stable")])
