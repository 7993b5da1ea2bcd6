"""Recorded times to int64 nanoseconds, and the order of spans: what cannot be true is dropped or cut, and counted."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from diagnose.source.base import Damage, Shift
from diagnose.source.columns import Array
from diagnose.trace.intervals import IntArray

SECOND_US = 1e6
LATEST_US = 9e15  # A double holds no larger number of microseconds to their parts; it is in the year 2255.
DAY_US = 86_400e6
"""No window of torch.profiler lasts a day: what lies further from the rest was not measured."""

IMPOSSIBLE_OVERLAP_NS = 1_000_000_000
"""Work on one stream runs in order. Overlaps of microseconds are real (programmatic dependent launch, graph branches);
past a second the recorder lost an end (ROCm flush artefacts last seconds to centuries)."""

IMPOSSIBLE_END_NS = 3_600_000_000_000
"""What ends an hour after anything has begun has lost its end: even a hanging collective is given up before."""


class Times(Struct, frozen=True):
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
    dur_us = np.minimum(np.where(dur_known, dur_us, 0.0), 2 * DAY_US)
    plausible = known & (np.abs(whole - middle) < DAY_US)
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


def clip(raw: dict[str, Array], keep: Array, device_work: Array, damage: Damage) -> None:
    """Cut what cannot last so long where the next on its row begins, or where the last event of all does."""
    at = np.lexsort((raw["start_ns"], device_work, raw["track"]))
    at = at[keep[at]]
    start, dur = raw["start_ns"][at], raw["dur_ns"][at]
    last = start.max(initial=0)
    follows = (raw["track"][at][1:] == raw["track"][at][:-1]) & (device_work[at][1:] == device_work[at][:-1])
    until_next = np.append(np.where(follows, start[1:], last), last) - start
    overlaps = np.append(follows, False) & device_work[at] & (dur - until_next > IMPOSSIBLE_OVERLAP_NS)
    cut = overlaps | (start + dur - last > IMPOSSIBLE_END_NS)
    damage.count("clipped", cut, device_work[at])
    raw["dur_ns"][at[cut]] = until_next[cut]
