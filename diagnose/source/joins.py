"""Device work joined to the calls that launched it: by correlation, else by the op of both, else by order.

No work starts before the call that launches it, and no call that waits returns before the work that it waits for has
ended. So what a device's clock is off by lies between two bounds. Where 0 does, times stay as they were recorded.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.source.base import Damage, Shift
from diagnose.source.columns import DEVICE_WORK, Array, is_kind, matched
from diagnose.trace import kinds
from diagnose.trace.enums import Direction, HostMemory, SpanKind
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import ApiKind, api_kind

_ASKED = {
    ApiKind.KERNEL_LAUNCH: SpanKind.KERNEL.value,
    ApiKind.COPY: SpanKind.MEMCPY.value,
    ApiKind.MEMSET: SpanKind.MEMSET.value,
}


def launches(spans: pd.DataFrame, damage: Damage) -> tuple[IntArray, IntArray]:
    """(call, work) for all work of which the call is known; spans are in order of start."""
    kind, correlation = spans["kind"].cat.codes.to_numpy(), spans["correlation"].to_numpy()
    calls = np.flatnonzero(is_kind(kind, (SpanKind.RUNTIME, SpanKind.DRIVER)))
    work = np.flatnonzero(is_kind(kind, DEVICE_WORK))
    call_of, work_of = matched(calls, correlation[calls], work, correlation[work])
    if (correlation[work] > 0).all():
        return call_of, work_of
    # Other work that names a call was launched by one that is not in the file.
    asked = spans.iloc[np.setdiff1d(work[correlation[work] <= 0], work_of)]
    asking = spans.iloc[np.setdiff1d(calls, call_of)]
    what = asking["name"].map(lambda name: _ASKED.get(api_kind(name)))
    asking = asking.assign(what=what.astype(object))[what.notna()].rename_axis("call").reset_index()
    asked = asked.assign(what=asked["kind"].astype(object)).rename_axis("work").reset_index()
    by_op = _by_op(asking, asked)
    left = asking[~asking["call"].isin(by_op["call"])], asked[~asked["work"].isin(by_op["work"])]
    found = pd.concat([by_op, _by_order(*left)])
    damage.joined += len(found)
    return np.append(call_of, found["call"]).astype(np.int64), np.append(work_of, found["work"]).astype(np.int64)


def _by_op(asking: pd.DataFrame, asked: pd.DataFrame) -> pd.DataFrame:
    """The first work of an op's External id is that of the first call with it, and so on: both are in order."""
    keys = ["external_id", "what"]
    sides = [side[side["external_id"] > 0] for side in (asking, asked)]
    numbered = [side.assign(place=side.groupby(keys).cumcount()) for side in sides]
    both = numbered[0].merge(numbered[1], on=[*keys, "place"])
    return both[both["start_ns_x"] <= both["start_ns_y"]]


def _by_order(asking: pd.DataFrame, asked: pd.DataFrame) -> pd.DataFrame:
    """Where all is on one stream the last work is that of the last call, if each then starts after its call."""
    asked, sure = asked.tail(len(asking)), asked["track"].nunique() == 1 and len(asking) <= len(asked)
    both = asking.reset_index(drop=True).merge(asked.reset_index(drop=True), left_index=True, right_index=True)
    sure &= bool(((both["what_x"] == both["what_y"]) & (both["start_ns_x"] <= both["start_ns_y"])).all())
    return both if sure else both.iloc[:0]


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
    """The devices whose times have to move, by the least that is causal and the usual delay where that fits."""
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
    """The least value without those that too few are as low as."""
    return int(np.partition(values, WITNESSES - 1)[WITNESSES - 1]) if len(values) >= WITNESSES else _UNBOUNDED


def _slack(events: Events, calls: IntArray, launch: IntArray, launched: IntArray) -> IntArray:
    """By how much calls return after the end of what they waited for, which is at least this: one for each such call.

    A wait for a stream does not say for which: it is for the one that leaves it most.
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
    """Whether a copy's call returns after it: to the host, if it is not asynchronous or the memory is pageable.

    CUDA runtime API, "API synchronization behavior".
    """
    waits = "Async" not in call or kinds.host_memory(copy) is HostMemory.PAGEABLE
    return waits and kinds.copy_direction(copy) is Direction.D2H
