"""Steps from what the program launches: a training launches the same work again and again.

Layers launch the same again and again too, within a step. A period is a step only if it holds an optimizer's kernels,
which an optimizer without fused or foreach kernels does not show.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from diagnose.trace import enums, kinds
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind

MIN_PERIODS = 3
LEAST_LAUNCHES = 8  # Of a period: shorter ones are loops within a step (our choice).
REGULAR = 0.8  # Share of a name's distances that must be equal for them to propose a period.
ALIKE = 0.95  # Share of the launches of a period that must be what was launched a period before.
MOST = 0.5  # Share of all launches that must lie in periods: the rest is start-up, or something else (our choice).

AS_GOOD = 0.05
"""Of two periods that hold about as much the shorter one is the step, the longer one several (our choice)."""

MOST_CANDIDATES = 64
_UPDATING = (KernelKind.OPTIMIZER, KernelKind.FOREACH)


def repeated(spans: pd.DataFrame, links: pd.DataFrame) -> tuple[IntArray, int]:
    """Starts of the calls that begin each period, and how many launches one has; nothing if launches do not repeat.

    A period begins after the longest pause between calls in it, on average: that is where a training gets its data.
    """
    none = np.zeros(0, dtype=np.int64), 0
    start, end, name = _launches(spans, links)
    period = _period(name)
    if not period:
        return none
    first, last = _regular(name, period)
    if last - first < MIN_PERIODS * period:
        return none
    pause = np.append(start[first + 1 : last] - end[first : last - 1], 0)
    if not _updates(spans, name[first : first + period]):
        return none
    whole = len(pause) // period * period
    begin = first + (int(pause[:whole].reshape(-1, period).mean(axis=0).argmax()) + 1) % period
    starts = start[begin:last:period]
    return (starts, period) if len(starts) > MIN_PERIODS else none


def _updates(spans: pd.DataFrame, names: IntArray) -> bool:
    labels = spans["name"].cat.categories
    return any(kinds.kernel_kind(str(labels[one])) in _UPDATING for one in np.unique(names).tolist())


def _launches(spans: pd.DataFrame, links: pd.DataFrame) -> tuple[IntArray, IntArray, IntArray]:
    """When each launching call starts and ends, in order, and what it launches first, as a number."""
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
    """The longest stretch of launches each period of which is like the one before: what comes before is start-up."""
    odd = name[period:] != name[:-period]
    blocks = len(odd) // period
    calm = odd[: blocks * period].reshape(-1, period).mean(axis=1) <= 1 - ALIKE
    edges = np.flatnonzero(np.diff(np.concatenate(([False], calm, [False])).astype(np.int8)))
    runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    if not runs:
        return 0, 0
    first, last = max(runs, key=lambda run: run[1] - run[0])
    return first * period, min((last + 1) * period, len(name))
