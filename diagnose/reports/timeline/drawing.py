"""What a page draws of the used steps: marks in lanes, and the device's idle gaps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.facts.core.base import Facts, optional
from diagnose.facts.core.breakdown import device_time
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.steps import Measure, Steps, steps
from diagnose.findings.timeline import KINDS, MARK_KINDS, MarkKind, MarkTable, Timeline
from diagnose.reports.timeline.lanes import lanes, window
from diagnose.reports.timeline.marks import Marks
from diagnose.trace.units import clipped

MOST_MARKS = 16_000
"""Marks of all used steps, and again of the detailed one: with coarser copies, a page draws some 50,000."""

MOST_NAME = 160
"""Characters of a name."""


def timeline(facts: Facts) -> Timeline:
    """The used steps as marks. Raises Missing if no step can be measured."""
    used, laid_out, spans = steps(facts), lanes(facts), facts.rank.spans
    ids = np.flatnonzero((laid_out.lane >= 0) & (laid_out.kind >= 0))
    marks = Marks.single(
        lane=laid_out.lane[ids],
        start_ns=spans["start_ns"].to_numpy()[ids],
        dur_ns=spans["dur_ns"].to_numpy()[ids],
        label=spans["name"].cat.codes.to_numpy()[ids].astype(np.int64),
        kind=laid_out.kind[ids].astype(np.int64),
    ).within(*window(facts))
    marks = _together(marks, _idle_marks(facts)).in_order()
    zero, end = window(facts)
    marks = marks.moved(-zero)
    cut = [(0, end - zero, marks)]
    if marks.size > MOST_MARKS:
        low, high = detailed(used, zero)
        cut.append((low, high, marks.within(low, high)))
    merged = [(low, high, *part.at_most(MOST_MARKS, high - low)) for low, high, part in cut]
    labels, tables = _labelled(facts, merged)
    return Timeline(
        dur_ns=end - zero,
        steps=() if used.measure is Measure.WINDOW else used.numbers,
        bounds_ns=tuple((used.bounds_ns - zero).tolist()),
        lanes=laid_out.lanes,
        labels=labels,
        kinds=KINDS,
        tables=tables,
        left_out=laid_out.left_out,
    )


def detailed(used: Steps, zero_ns: int) -> tuple[int, int]:
    """From where to where the most typical step is, the one nearest to the median, from the given zero."""
    times = used.times_ns
    typical = int(np.abs(times - np.median(times)).argmin())
    low, high = used.bounds_ns[typical : typical + 2] - zero_ns
    return int(low), int(high)


def _together(one: Marks, other: Marks) -> Marks:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return Marks(*(np.concatenate(pair) for pair in pairs))


def _idle_marks(facts: Facts) -> Marks:
    """Idle gaps in the first lane, labelled with the line they come from: -1 none, -2 the first, and so on.

    With them what is neither busy nor idle.
    """
    found = optional(idle_gaps, facts)
    if found is None:
        return Marks(*(np.zeros(0, dtype=np.int64) for _ in range(7)))
    holes = device_time(facts).graph_not_recorded
    starts = np.concatenate((found.gaps.starts, holes.starts))
    order, hole = np.argsort(starts), np.full(holes.size, MARK_KINDS.index(MarkKind.GRAPH_NOT_RECORDED))
    return Marks.single(
        lane=np.zeros(len(starts), dtype=np.int64),
        start_ns=starts[order],
        dur_ns=(np.concatenate((found.gaps.ends, holes.ends)) - starts)[order],
        label=np.array([*_site_numbers(facts), *[-1] * holes.size], dtype=np.int64)[order],
        kind=np.concatenate((found.cause.astype(np.int64) + len(MarkKind), hole))[order],
    )


def _site_numbers(facts: Facts) -> list[int]:
    numbers: dict[object, int] = {None: -1}
    return [numbers.setdefault(site, -1 - len(numbers)) for site in idle_gaps(facts).sites]


def _labelled(facts: Facts, merged: list[tuple[int, int, Marks, int]]) -> tuple[tuple[str, ...], tuple[MarkTable, ...]]:
    """The names that are used, and the marks with the numbers of theirs."""
    codes = np.unique(np.concatenate([marks.label for _, _, marks, _ in merged]))
    names = facts.rank.spans["name"].cat.categories
    found = optional(idle_gaps, facts)
    sites = [] if found is None else [one for one in dict.fromkeys(found.sites) if one is not None]

    def text(code: int) -> str:
        if code >= 0:
            return clipped(str(names[code]), MOST_NAME)
        return f"{sites[-code - 2].file}:{sites[-code - 2].line}" if code < -1 else ""

    texts = [text(int(code)) for code in codes]
    labels = list(dict.fromkeys(texts))[: 1 << 16]
    number = {label: k for k, label in enumerate(labels)}
    position = np.array([number.get(one, 0) for one in texts], dtype=np.int64)
    tables = [
        replace(marks, label=position[np.searchsorted(codes, marks.label)]).table(low, high, resolution)
        for low, high, marks, resolution in merged
    ]
    return tuple(labels), tuple(tables)
