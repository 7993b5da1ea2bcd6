"""Recorded times to int64 nanoseconds, and the order of spans: what cannot be true is dropped or cut, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.source.base import Damage, Shift
from diagnose.trace.intervals import IntArray

SECOND_US = 1e6
LATEST_US = 9e15  # A double holds no larger number of microseconds to their parts; it is in the year 2255.
DAY_US = 86_400e6
"""No window of torch.profiler lasts a day: what lies further from the rest, or lasts longer, was not measured."""

IMPOSSIBLE_OVERLAP_NS = 1_000_000_000
"""Work on one stream runs in order. Overlaps of microseconds are real (programmatic dependent launch, graph branches);
past a second the recorder lost an end (ROCm flush artefacts last seconds to centuries)."""


@dataclass(frozen=True)
class Times:
    """Times of all rows, in the rows' order."""

    start_ns: IntArray
    dur_ns: IntArray
    keep: npt.NDArray[np.bool_]  # Rows whose times can be true.
    zero_unix_ns: int
    resolution_ns: int


def to_ns(
    ts: npt.NDArray[Any], dur_us: npt.NDArray[Any], on_device: npt.NDArray[np.bool_], base_ns: int, damage: Damage
) -> Times:
    """Times from the zero of the earliest kept event. `ts` is float64 us, or int64 ns (-1: no time).

    Exact: whole and fractional microseconds are converted apart, so that a double's 53 bits hold both.
    """
    if ts.dtype == np.int64:
        whole, fraction_ns, known = ts // 1000, ts % 1000, ts >= 0
    else:
        known = np.isfinite(ts) & (np.abs(ts) < LATEST_US)
        whole = np.floor(np.where(known, ts, 0.0))
        fraction_ns = np.rint((np.where(known, ts, 0.0) - whole) * 1000).astype(np.int64)
        whole = whole.astype(np.int64)
    zero = known & (whole == 0) & (fraction_ns == 0)
    known &= ~(zero & (_far_from(whole[known & ~zero]) | (on_device & (dur_us == 0))))
    damage.count("without_time", ~known, on_device)
    middle = float(np.median(whole[known])) if known.any() else 0.0
    dur_known = np.isfinite(dur_us)
    dur_us = np.where(dur_known, dur_us, 0.0)
    plausible = known & (np.abs(whole - middle) < DAY_US) & (dur_us < DAY_US)
    damage.count("implausible_times", known & ~plausible, on_device)
    damage.count("negative_durations", plausible & ((dur_us < 0) | ~dur_known), on_device)
    zero_us = int(whole[plausible].min()) if plausible.any() else 0
    start_ns = np.where(plausible, (whole - zero_us) * 1000 + fraction_ns, 0)
    zero_ns = int(start_ns[plausible].min()) if plausible.any() else 0
    start_ns = np.where(plausible, start_ns - zero_ns, 0)
    dur_ns = np.rint(np.where(plausible, np.maximum(dur_us, 0.0), 0.0) * 1000).astype(np.int64)
    in_us = not (fraction_ns[plausible].any() or (dur_ns % 1000).any())
    return Times(start_ns, dur_ns, plausible, base_ns + zero_us * 1000 + zero_ns, 1000 if in_us else 1)


def _far_from(others_us: IntArray) -> bool:
    """Whether a start of 0 was never set (kineto issue 109): the others lie farther from it than from each other.

    And by a second at least: what counts time from its own start may hold little at first.
    """
    return bool(len(others_us)) and bool(others_us.min() > max(others_us.max() - others_us.min(), SECOND_US))


def shifted(times: Times, device: IntArray, shifts: Sequence[Shift]) -> Times:
    """The times with those of devices moved. `device`: of each row, -1 for times of the host's clock."""
    start_ns = times.start_ns + sum(np.where(device == shift.device, shift.by_ns, 0) for shift in shifts)
    zero_ns = int(start_ns[times.keep].min())
    return replace(times, start_ns=start_ns - zero_ns, zero_unix_ns=times.zero_unix_ns + zero_ns)


def outside(start_ns: IntArray, windows: Sequence[tuple[object, object]], origin_ns: int) -> int:
    """How many starts lie before all windows or after all of them; windows are (start, duration) in us of the trace's
    own clock, on which time 0 is `origin_ns`. 0 if no window is known."""
    bounds = [
        (int(start * 1000) - origin_ns, int(start * 1000) + int(dur * 1000) - origin_ns)
        for start, dur in windows
        if _is_time(start) and _is_time(dur)
    ]
    if not bounds:
        return 0
    first, last = min(start for start, _ in bounds) - 1000, max(end for _, end in bounds) + 1000
    return int(((start_ns < first) | (start_ns > last)).sum())


def _is_time(value: object) -> TypeGuard[float | Decimal]:
    return isinstance(value, (int, float, Decimal)) and -LATEST_US < value < LATEST_US


def order(raw: dict[str, npt.NDArray[Any]], keep: npt.NDArray[np.bool_], damage: Damage) -> IntArray:
    """Kept rows in order of start (file order among equals), without exact repeats of an identified event.

    Repeats are told by a correlation or external id: whole-microsecond files hold chance twins without one.
    """
    rows = np.flatnonzero(keep)
    rows = rows[np.argsort(raw["start_ns"][rows], kind="stable")]
    start = raw["start_ns"][rows]
    tied = np.zeros(len(rows), dtype=bool)
    same = start[1:] == start[:-1]
    tied[1:] |= same
    tied[:-1] |= same
    tied &= (raw["correlation"][rows] > 0) | (raw["external_id"][rows] > 0)
    asked = rows[tied]
    columns = ("start_ns", "dur_ns", "kind", "name", "track", "correlation", "external_id")
    repeats = pd.DataFrame({name: raw[name][asked] for name in columns}).duplicated().to_numpy()
    damage.duplicates += int(repeats.sum())
    drop = np.zeros(len(keep), dtype=bool)
    drop[asked[repeats]] = True
    return rows[~drop[rows]]


def clip_overlaps(raw: dict[str, npt.NDArray[Any]], device_work: npt.NDArray[np.bool_], damage: Damage) -> None:
    """Cut device work at the start of the next work on its stream where it overlaps that impossibly long."""
    at = np.flatnonzero(device_work)
    at = at[np.argsort(raw["track"][at], kind="stable")]
    track, start, dur = raw["track"][at], raw["start_ns"][at], raw["dur_ns"][at]
    until_next = start[1:] - start[:-1]
    cut = (track[1:] == track[:-1]) & (dur[:-1] - until_next > IMPOSSIBLE_OVERLAP_NS)
    damage.count("clipped", cut, np.ones_like(cut))
    raw["dur_ns"][at[:-1][cut]] = until_next[cut]
