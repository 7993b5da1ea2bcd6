"""Device work joined to the calls that launched it: by correlation, else by the op of both, else by order."""

from __future__ import annotations

import numpy as np
import pandas as pd

from diagnose.source.base import Damage
from diagnose.source.columns import DEVICE_WORK, is_kind, matched
from diagnose.trace.enums import SpanKind
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
