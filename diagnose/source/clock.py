"""Recorded times on one clock, in int64 nanoseconds, and the order of spans: what cannot be true is dropped or cut.

No work starts before the call that launches it, and no call that waits returns before the work that it waits for has
ended. So what a device's clock is off by lies between two bounds. Where 0 does, times stay as they were recorded.
"""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from diagnose.source.base import Damage, Shift
from diagnose.source.columns import DEVICE_WORK, Array, is_kind, matched
from diagnose.trace import kinds
from diagnose.trace.enums import Direction, HostMemory, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import ApiKind

SECOND_US = 1e6
LATEST_US = 9e15  # A double holds no larger number of microseconds to their parts; it is in the year 2255.
DAY_US = 86_400e6  # No window of torch.profiler lasts a day: what lies further from the rest was not measured.
IMPOSSIBLE_OVERLAP_NS = 1_000_000_000
"""Work on one stream runs in order. Overlaps of microseconds are real (programmatic dependent launch, graph branches);
past a second the recorder lost an end (ROCm flush artefacts last seconds to centuries)."""

IMPOSSIBLE_END_NS = 3_600_000_000_000  # After the last begin: even a hanging collective is given up before.


class Times(Struct, frozen=True):
    """Times of all rows, in the rows' order."""

    start_ns: IntArray
    dur_ns: IntArray
    keep: npt.NDArray[np.bool_]  # Rows whose times can be true.
    zero_unix_ns: int  # Unix time of `start_ns` 0, if the recording tells Unix time.
    resolution_ns: int  # 1000 if all times are whole microseconds, else 1.


def to_ns(
    ts: npt.NDArray[Any], dur_us: npt.NDArray[Any], on_device: npt.NDArray[np.bool_], base_ns: int, damage: Damage
) -> Times:
    """Times in ns since the earliest kept start. `ts`: float64 us, or int64 ns (-1: no time), since `base_ns` (Unix).

    Rows without a plausible time are not kept, but counted. Whole and fractional us are converted apart, to be exact.
    """
    if ts.dtype == np.int64:
        whole, fraction_ns, known = ts // 1000, ts % 1000, ts >= 0
    else:
        known = np.isfinite(ts) & (np.abs(ts) < LATEST_US)
        whole = np.floor(np.where(known, ts, 0.0))
        fraction_ns = np.rint((np.where(known, ts, 0.0) - whole) * 1000).astype(np.int64)
        whole = whole.astype(np.int64)
    zero = known & (whole == 0) & (fraction_ns == 0)
    known &= ~(zero & (_zero_is_unset(whole[known & ~zero]) | (on_device & (dur_us == 0))))
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


def _zero_is_unset(others_us: IntArray) -> bool:
    """Whether starts of 0 were never set (kineto issue 109): all others lie further from 0 than from each other.
    And over a second from 0: a recorder that counts from its own start may at first record little."""
    return bool(len(others_us)) and bool(others_us.min() > max(others_us.max() - others_us.min(), SECOND_US))


def shifted(times: Times, device: IntArray, shifts: Sequence[Shift]) -> Times:
    """The times with each device's moved by its shift. `device`: of each row, -1 for times of the host's clock."""
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
    Events without a correlation or external id are never repeats: in whole microseconds, some are alike by chance."""
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
    """In place, end rows that last impossibly long at the next start on their track; if none, at the last of all."""
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


USUAL_DELAY_NS = 5_000
"""From a launching call to its work on an idle device, and from the end of work to the return of what waits for it.

The least of a recording is 4 to 12 us in nearly all of 90 recordings of nine kinds of GPU.
"""

TOLERANCE_NS = 1_000  # Recorders of whole microseconds cut fractions off.
WITNESSES = 3  # A bound is what so many launches or waits agree on: torn records move nothing.

_UNBOUNDED = np.iinfo(np.int64).max


class Events(Struct, frozen=True):
    """Rows as a reader has them, in any order. Arrays of shape (rows,)."""

    raw: dict[str, Array]
    keep: npt.NDArray[np.bool_]  # Rows whose times can be true.
    device: IntArray  # -1 on the host.
    labels: list[str]  # The text of each code of the column `name`.


def shifts(events: Events) -> Iterator[Shift]:
    """A Shift for each device whose times break causality: the least that mends it, and the usual delay if it fits."""
    raw = events.raw
    calls = np.flatnonzero(events.keep & is_kind(raw["kind"], (SpanKind.RUNTIME, SpanKind.DRIVER)))
    work = np.flatnonzero(events.keep & is_kind(raw["kind"], DEVICE_WORK))
    launch, launched = matched(calls, raw["correlation"][calls], work, raw["correlation"][work])
    early_ns = raw["start_ns"][launch] - raw["start_ns"][launched]
    devices = np.unique(events.device[launched])
    # A call does not say on which device it waits.
    slack_ns = _slack(events, calls, launch, launched) if len(devices) == 1 else np.zeros(0, dtype=np.int64)
    most = _agreed(slack_ns)
    for device in devices.tolist():
        early = early_ns[events.device[launched] == device]
        least = -_agreed(-early)  # Far below 0 where too few tell.
        if least > TOLERANCE_NS:
            by_ns = least if most < least else min(least + USUAL_DELAY_NS, most)
        elif least <= most < -TOLERANCE_NS:
            by_ns = max(most - USUAL_DELAY_NS, least)
        else:
            continue
        sure_ns = None if _UNBOUNDED in (most, -least) else abs(most - least)
        yield Shift(device, by_ns, int((early > TOLERANCE_NS).sum()), sure_ns, drifts=most < least - TOLERANCE_NS)


def _agreed(values: IntArray) -> int:
    """The lowest value but for WITNESSES - 1, so that few torn records decide nothing; _UNBOUNDED of too few."""
    return int(np.partition(values, WITNESSES - 1)[WITNESSES - 1]) if len(values) >= WITNESSES else _UNBOUNDED


def _slack(events: Events, calls: IntArray, launch: IntArray, launched: IntArray) -> IntArray:
    """Per call that waits, the ns from the end of the work that it waited for to its return: device times can move
    later by no more than that.

    A wait for a stream does not say which: taken is the stream that was done first. A wait for the device is for all.
    """
    raw, labels = events.raw, events.labels
    start, name = raw["start_ns"], raw["name"]
    end = start + raw["dur_ns"]
    api = {code: kinds.api_kind(labels[code]) for code in np.unique(name[calls]).tolist()}
    stream_waits, device_waits = (
        calls[np.isin(name[calls], [code for code, kind in api.items() if kind is wanted])]
        for wanted in (ApiKind.STREAM_SYNC, ApiKind.DEVICE_SYNC)
    )
    waits = np.concatenate([stream_waits, device_waits])
    least, most = np.full(len(waits), _UNBOUNDED), np.full(len(waits), -_UNBOUNDED)
    order = np.argsort(end[launch], kind="stable")
    launch, launched = launch[order], launched[order]
    for track in np.unique(raw["track"][launched]):
        on_it = raw["track"][launched] == track
        done = np.maximum.accumulate(end[launched[on_it]])
        before = np.searchsorted(end[launch[on_it]], start[waits], side="right")
        left = np.where(before > 0, end[waits] - done[before - 1], 0)
        least[before > 0] = np.minimum(least, left)[before > 0]
        most[before > 0] = np.maximum(most, left)[before > 0]
    of_waits = np.where(np.arange(len(waits)) < len(stream_waits), most, least)[least < _UNBOUNDED]
    copies = np.isin(name[launch], [code for code, kind in api.items() if kind is ApiKind.COPY])
    launch, launched = launch[copies], launched[copies]
    pairs = list(zip(name[launch].tolist(), name[launched].tolist(), strict=True))
    blocks = {(call, copy): _blocks(labels[call], labels[copy]) for call, copy in set(pairs)}
    of_copies = (end[launch] - end[launched])[np.array([blocks[pair] for pair in pairs], dtype=bool)]
    return np.concatenate([of_waits, of_copies])


def _blocks(call: str, copy: str) -> bool:
    """Whether a call returns only once its copy has ended: one to the host, not Async or of pageable memory.
    CUDA runtime API, "API synchronization behavior"."""
    waits = "Async" not in call or kinds.host_memory(copy) is HostMemory.PAGEABLE
    return waits and kinds.copy_direction(copy) is Direction.D2H
