"""Finding training steps in a trace, giving every span its step, and whether long ones occur unprofiled.

Layers launch the same again and again too, within a step. A period is a step only if it holds an optimizer's kernels,
which an optimizer without fused or foreach kernels does not show.
"""

import re
import statistics
from itertools import pairwise

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.trace import enums, kinds
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind
from diagnose.trace.manifest import RankManifest
from diagnose.trace.model import Step

MIN_PERIODS = 3
LEAST_LAUNCHES = 8  # Of a period: shorter ones are loops within a step (our choice).
REGULAR = 0.8  # Share of a name's distances that must be equal for them to propose a period.
ALIKE = 0.95  # Share of the launches of a period that must be what was launched a period before.
MOST = 0.5  # Share of all launches that must lie in periods: the rest is start-up, or something else (our choice).

AS_GOOD = 0.05  # Of two periods that hold about as much the shorter is the step (our choice).
MOST_CANDIDATES = 64
_UPDATING = (KernelKind.OPTIMIZER, KernelKind.FOREACH)


def repeated(spans: pd.DataFrame, links: pd.DataFrame) -> tuple[IntArray, int]:
    """Starts of the calls that begin each period, and how many launches one has; nothing if launches do not repeat.

    A period begins after the longest pause between calls in it, on average: that is where a training gets its data.
    """
    none = np.zeros(0, dtype=np.int64), 0
    start, end, name = _launches(spans, links)
    period = _period(name)
    first, last = _regular(name, period) if period else (0, 0)
    labels = spans["name"].cat.categories
    kernels = (kinds.kernel_kind(str(labels[one])) for one in np.unique(name[first : first + period]).tolist())
    if last - first < max(MIN_PERIODS * period, 1) or not any(kind in _UPDATING for kind in kernels):
        return none
    pause = np.append(start[first + 1 : last] - end[first : last - 1], 0)
    whole = len(pause) // period * period
    begin = first + (int(pause[:whole].reshape(-1, period).mean(axis=0).argmax()) + 1) % period
    starts = start[begin:last:period]
    return (starts, period) if len(starts) > MIN_PERIODS else none


def _launches(spans: pd.DataFrame, links: pd.DataFrame) -> tuple[IntArray, IntArray, IntArray]:
    """In order: when each call that launches kernels starts and ends, and the name code of its first kernel."""
    chosen = links[links["kind"] == LinkKind.LAUNCH.value]
    calls, work = chosen["from_id"].to_numpy(), chosen["to_id"].to_numpy()
    kernels = spans["kind"].cat.codes.to_numpy()[work] == enums.code(SpanKind.KERNEL)
    calls, at = np.unique(calls[kernels], return_index=True)
    start = spans["start_ns"].to_numpy()[calls]
    order = np.argsort(start, kind="stable")
    names = spans["name"].cat.codes.to_numpy()[work[kernels][at]]
    end = start + spans["dur_ns"].to_numpy()[calls]
    return start[order], end[order], names[order].astype(np.int64)


def _period(name: IntArray) -> int:
    """The distance at which launches are the same again for the longest time; 0 if there is none."""
    if len(name) < MIN_PERIODS * LEAST_LAUNCHES:
        return 0
    order = np.lexsort((np.arange(len(name)), name))
    same = name[order[1:]] == name[order[:-1]]
    distance = np.diff(order)[same]
    of = name[order[1:]][same]
    votes: dict[int, int] = {}
    for own in np.split(distance, np.flatnonzero(np.diff(of)) + 1):
        usual = int(np.median(own)) if len(own) >= MIN_PERIODS - 1 else 0
        if LEAST_LAUNCHES <= usual <= len(name) // MIN_PERIODS and (own == usual).mean() >= REGULAR:
            votes[usual] = votes.get(usual, 0) + 1
    likely = sorted(votes, key=lambda vote: -votes[vote])[:MOST_CANDIDATES]
    held = {one: (last - first) / len(name) for one in likely for first, last in [_regular(name, one)]}
    best = max(held.values(), default=0.0)
    return min((one for one in likely if held[one] >= max(best - AS_GOOD, MOST)), default=0)


def _regular(name: IntArray, period: int) -> tuple[int, int]:
    """(first, past the last) of the longest stretch of launches whose periods are like the one before; (0, 0): none."""
    odd = name[period:] != name[:-period]
    blocks = len(odd) // period
    calm = odd[: blocks * period].reshape(-1, period).mean(axis=1) <= 1 - ALIKE
    edges = np.flatnonzero(np.diff(np.concatenate(([False], calm, [False])).astype(np.int8)))
    runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    if not runs:
        return 0, 0
    first, last = max(runs, key=lambda run: run[1] - run[0])
    return first * period, min((last + 1) * period, len(name))


NO_STEP = -1
PARTIAL_STEP = 0.7  # A border step with less than this share of the median step's device work was cut off.
MIN_REPEATS = 3  # a marker seen less often says too little about a period


class StepMarks(Struct, frozen=True):
    """The steps of a rank, in order of time, and what they were found by ("" when there are none)."""

    steps: tuple[Step, ...]
    marker: str


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
    for what, found in (("", _marks(spans, kinds.Activity.LOADER)), ("ranges called ", _called_steps(spans))):
        begins = _most_repeated(found)
        if len(begins) >= MIN_REPEATS:
            return StepMarks(_between(begins["start_ns"].to_numpy()), f"the starts of {what}{begins['name'].iloc[0]}")
    starts, launches = repeated(spans, links)
    if launches:
        return StepMarks(_between(starts), f"launches, which repeat every {launches:,}")
    return StepMarks((), "")


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
    """Annotations, ops and loader spans of this activity."""
    names = spans["name"].cat
    wanted = np.flatnonzero([kinds.activity(name) == activity for name in names.categories])
    if not len(wanted):
        return spans.iloc[:0]
    found = spans[np.isin(names.codes.to_numpy(), wanted)]
    return found[found["kind"].isin([SpanKind.ANNOTATION.value, SpanKind.OP.value, SpanKind.LOADER.value])]


_CALLED_STEP = re.compile(r"((train|training)[ _-]?)?(step|iter|iteration)s?[ _#:=-]*\d*", re.IGNORECASE)


def _called_steps(spans: pd.DataFrame) -> pd.DataFrame:
    """Annotations called step or iteration, under that name without its number."""
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
    """(How many of the steps timed without the profiler took at least `dur_ns` / 2 longer than their median, how many
    were timed). The first is 0 if steps differ so much anyway that this would not stand out."""
    timed = manifest.unprofiled.wall_ns if manifest and manifest.unprofiled else ()
    if len(timed) < 2:
        return 0, len(timed)
    usual = statistics.median(timed)
    return sum(_stands_out(timed, dur_ns) and one >= usual + dur_ns / 2 for one in timed), len(timed)


def never_again(manifest: RankManifest | None, dur_ns: int) -> bool:
    """Whether ENOUGH steps were timed without the profiler, and what takes `dur_ns` would stand out and is in none.

    It is for what few recorded steps have: what is in all of them makes the median step as long.
    """
    seen, many = seen_again(manifest, dur_ns)
    timed = manifest.unprofiled.wall_ns if manifest and manifest.unprofiled else ()
    return many >= ENOUGH and not seen and _stands_out(timed, dur_ns)


def _stands_out(timed: tuple[int, ...], dur_ns: int) -> bool:
    return dur_ns / 2 > STANDS_OUT * (statistics.median(timed) - statistics.quantiles(timed, n=4)[0])
