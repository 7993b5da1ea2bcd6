"""Finding training steps in a trace, giving every span its step, and what makes some of them long."""

from __future__ import annotations

import re
import statistics
from itertools import pairwise

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.trace import kinds, periods
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.manifest import RankManifest
from diagnose.trace.model import Step

NO_STEP = -1
PARTIAL_STEP = 0.7
"""A step at the border of the window with less than this share of the median step's device operations was cut off."""

MIN_REPEATS = 3  # a marker seen less often says too little about a period


class StepMarks(Struct, frozen=True):
    """The steps of a rank, in order of time, and what they were found by ("" when there are none)."""

    steps: tuple[Step, ...]
    marker: str


NO_MARKS = StepMarks((), "")


def find(spans: pd.DataFrame, links: pd.DataFrame) -> StepMarks:
    """Steps from `ProfilerStep#N`, else from the optimizer's or the loader's markers, else from ranges called steps.

    And where nothing marks them, from the period in which launches repeat.

    A `ProfilerStep#N` span is a step. An optimizer's `step` ends one: step k lasts from the end of call k-1 to the end
    of call k. A loader's `__next__` begins one, and so does a range of the user's that is called step or iteration. All
    but the first need MIN_REPEATS calls of one name, without numbers, on one thread.
    """
    marks = _marks(spans, kinds.Activity.STEP)
    if len(marks):
        return _from_profiler_steps(marks)
    ends = _most_repeated(_marks(spans, kinds.Activity.OPTIMIZER_STEP))
    if len(ends) >= MIN_REPEATS:
        bounds = (ends["start_ns"] + ends["dur_ns"]).to_numpy()
        return StepMarks(_between(bounds), f"the ends of {ends['name'].iloc[0]}")
    begins = _most_repeated(_marks(spans, kinds.Activity.LOADER))
    if len(begins) >= MIN_REPEATS:
        return StepMarks(_between(begins["start_ns"].to_numpy()), f"the starts of {begins['name'].iloc[0]}")
    ranges = _most_repeated(_called_steps(spans))
    if len(ranges) >= MIN_REPEATS:
        called = ranges["name"].iloc[0]
        return StepMarks(_between(ranges["start_ns"].to_numpy()), f"the starts of ranges called {called}")
    starts, launches = periods.repeated(spans, links)
    if launches:
        return StepMarks(_between(starts), f"launches, which repeat every {launches:,}")
    return NO_MARKS


def is_cut_off(work_counts: IntArray, position: int) -> bool:
    """Whether a step at the window's border was cut by it: too little device work, against at least two other steps."""
    return len(work_counts) >= 3 and bool(work_counts[position] < PARTIAL_STEP * float(np.median(work_counts)))


def assign(steps: tuple[Step, ...], moment_ns: IntArray) -> IntArray:
    """Position of the step that each moment is in, or NO_STEP. Shape (moments,)."""
    if not steps:
        return np.full(len(moment_ns), NO_STEP, dtype=np.int64)
    starts = np.array([step.start_ns for step in steps])
    ends = np.array([step.end_ns for step in steps])
    at = np.searchsorted(starts, moment_ns, side="right") - 1
    inside = (at >= 0) & (moment_ns < ends[np.maximum(at, 0)])
    return np.where(inside, at, NO_STEP)


def _marks(spans: pd.DataFrame, activity: kinds.Activity) -> pd.DataFrame:
    names = spans["name"].cat
    wanted = np.flatnonzero([kinds.activity(name) == activity for name in names.categories])
    if not len(wanted):
        return spans.iloc[:0]
    found = spans[np.isin(names.codes.to_numpy(), wanted)]
    return found[found["kind"].isin([SpanKind.ANNOTATION.value, SpanKind.OP.value, SpanKind.LOADER.value])]


_CALLED_STEP = re.compile(r"((train|training)[ _-]?)?(step|iter|iteration)s?[ _#:=-]*\d*", re.IGNORECASE)


def _called_steps(spans: pd.DataFrame) -> pd.DataFrame:
    names = spans["name"].cat
    wanted = np.flatnonzero([_CALLED_STEP.fullmatch(name) is not None for name in names.categories])
    found = spans[np.isin(names.codes.to_numpy(), wanted) & (spans["kind"] == SpanKind.ANNOTATION.value)]
    return found.assign(name=found["name"].astype(str).str.replace(r"[ _#:=-]*\d*$", "", regex=True))


def _from_profiler_steps(marks: pd.DataFrame) -> StepMarks:
    """One step per number, on the thread that has most of them; of repeats and nested ones the first wins."""
    marks = marks[marks["track"] == marks["track"].mode().iloc[0]]
    steps: list[Step] = []
    seen: set[int] = set()
    for name, start, dur in zip(marks["name"], marks["start_ns"], marks["dur_ns"], strict=True):
        number = kinds.step_number(name)
        if number is None or number in seen or (steps and start < steps[-1].start_ns + 1):
            continue
        seen.add(number)
        if steps and steps[-1].end_ns > start:
            steps[-1] = Step(steps[-1].number, steps[-1].start_ns, int(start))
        steps.append(Step(number, int(start), int(start + dur)))
    return StepMarks(tuple(steps), "ProfilerStep")


def _most_repeated(marks: pd.DataFrame) -> pd.DataFrame:
    """The marks of the (name, thread) that occurs most; of equals the one whose first mark comes last."""
    if not len(marks):
        return marks
    groups = marks.groupby(["name", "track"], observed=True, sort=False)["start_ns"].agg(["size", "min"])
    name, track = groups.sort_values(["size", "min"]).index[-1]
    chosen: pd.DataFrame = marks[(marks["name"] == name) & (marks["track"] == track)]
    return chosen


def _between(bounds: IntArray) -> tuple[Step, ...]:
    return tuple(Step(k, int(start), int(end)) for k, (start, end) in enumerate(pairwise(bounds.tolist())))


STANDS_OUT = 4
"""Times the distance from the median step down to the quarter of the shortest, which is 0.67 standard deviations of
what varies normally, and which long steps leave as it is (our choice)."""

ENOUGH = 10  # Steps without the profiler that tell that something does not happen in them (our choice).


def seen_again(manifest: RankManifest | None, dur_ns: int) -> tuple[int, int]:
    """Steps timed without the profiler that took longer than the median one by at least half of this; and how many
    were timed. None did if steps differ so much anyway that it would not stand out."""
    timed = manifest.unprofiled.wall_ns if manifest and manifest.unprofiled else ()
    if len(timed) < 2:
        return 0, len(timed)
    usual = statistics.median(timed)
    return sum(_stands_out(timed, dur_ns) and one >= usual + dur_ns / 2 for one in timed), len(timed)


def never_again(manifest: RankManifest | None, dur_ns: int) -> bool:
    """Whether enough steps were timed without the profiler, and what takes so long would stand out and is in none.

    It is for what few recorded steps have: what is in all of them makes the median step as long.
    """
    seen, many = seen_again(manifest, dur_ns)
    timed = manifest.unprofiled.wall_ns if manifest and manifest.unprofiled else ()
    return many >= ENOUGH and not seen and _stands_out(timed, dur_ns)


def _stands_out(timed: tuple[int, ...], dur_ns: int) -> bool:
    return dur_ns / 2 > STANDS_OUT * (statistics.median(timed) - statistics.quantiles(timed, n=4)[0])
