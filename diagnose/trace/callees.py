"""What a line of the user's code calls, by the names of Python frames and C functions: which, of what kind, and when.

What counts is the call that the user's own code makes: of what that calls in turn nothing is told.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.trace import enums, frames, intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import CalleeKind, callee_kind

OWN, TORCH, RECORDER, COLLECTION = "", "torch", "recorder", "Python GC"
"""Names of what the user's line does itself; of calls of the framework, which show as ops and launches; of what our
recorder does; and of garbage that Python collects by itself, which may come anywhere."""

MOST = 0.5  # A call is named if it fills this share of some time (our choice).

_RECORDER = re.compile(r"(^|/)diagnose/capture/")
_BUILT_IN = re.compile(r"<built-in (?:function|method) (\w+)(?: of (?:\w+\.)*(\w+) object)?")
_MODULES = {"collect": "gc", "sleep": "time", "tensor": "torch", "as_tensor": "torch", "asarray": "torch"}
"""Of C functions that are named without their module, and are known by it."""


def named(frame: str, libraries: Collection[str] = ()) -> str:
    """What to say of a frame that the user's code called: one of the names above, or its own without an address."""
    if _RECORDER.search(frame):
        return RECORDER
    kind = callee_kind(frame)
    if kind is CalleeKind.LANGUAGE or frames.is_user_frame(frame, libraries) or frames.loop_owner(frame):
        return OWN
    return TORCH if kind is CalleeKind.TORCH else re.sub(r" at 0x[0-9a-f]+>?\Z", ">", frame)


def short(frame: str) -> str:
    """The name of a call for people, such as `json.dumps`, `gc.collect` or `BufferedReader.read`."""
    if site := frames.frame_site(frame):
        return ".".join((*frames.public_modules(site.file), site.function))
    found = _BUILT_IN.match(frame)
    if found is None:
        return frame
    owner = found[2] if found[2] not in ("type", "module") else None
    return ".".join(filter(None, (owner or _MODULES.get(found[1]), found[1])))


class Callees(Struct, frozen=True):
    """Stretches of host threads, of which the innermost counts. Arrays of shape (stretches,)."""

    start_ns: IntArray
    end_ns: IntArray
    track: IntArray
    name: IntArray  # Position in `names`: of `OWN`, `TORCH`, or a frame.
    calls: IntArray  # That begin in it.
    names: tuple[str, ...]

    def cut(self, times: Intervals) -> tuple[Intervals, IntArray]:
        """Times, none of which are empty, in pieces that each have one name and line; and the time of each piece."""
        return intervals.cut(times, np.concatenate((self.start_ns, self.end_ns)))

    def at(self, moments_ns: IntArray, tracks: IntArray) -> IntArray:
        """The name at each moment; that of `OWN` where nothing is known. Shape (moments,)."""
        found = nesting.innermost_at(moments_ns, tracks, self.track, self.start_ns, self.end_ns)
        return np.append(self.name, self.names.index(OWN))[found]

    def begun(self, times: Intervals, tracks: IntArray, names: IntArray) -> IntArray:
        """How many calls of that name begin in each time. Shape (times,)."""
        span = int(max(self.end_ns.max(initial=0), times.ends.max(initial=0))) + 1
        key = (self.track * len(self.names) + self.name) * span + self.start_ns
        order = np.argsort(key)
        before = np.concatenate(([0], np.cumsum(self.calls[order])))
        of = (tracks * len(self.names) + names) * span
        first, past = (np.searchsorted(key[order], of + moments) for moments in (times.starts, times.ends))
        found: IntArray = before[past] - before[first]
        return found

    def longest(self, times: Intervals, tracks: IntArray) -> tuple[IntArray, IntArray]:
        """The name that fills MOST of each time, else `OWN`; and a moment in it. Shapes (times,)."""
        name, moment = np.full(times.size, self.names.index(OWN)), (times.starts + times.ends) // 2
        some = np.flatnonzero(times.ends > times.starts)
        if not len(some):
            return name, moment
        pieces, owner = self.cut(times.where(some))
        middle, lasted = (pieces.starts + pieces.ends) // 2, pieces.ends - pieces.starts
        at = self.at(middle, tracks[some[owner]])
        pairs, pair = np.unique(owner * len(self.names) + at, return_inverse=True)
        spent = np.bincount(pair.reshape(-1), lasted)
        most = _largest(pairs // len(self.names), spent)
        filled = spent[most] >= MOST * (times.ends - times.starts)[some]
        name[some[filled]] = (pairs % len(self.names))[most[filled]]
        here = np.flatnonzero(at == name[some[owner]])
        longest = here[_largest(owner[here], lasted[here])]
        moment[some[owner[longest]]] = middle[longest]
        return name, moment


def _largest(group: IntArray, size: npt.NDArray[np.float64] | IntArray) -> IntArray:
    order = np.lexsort((size, group))
    last: IntArray = order[np.append(group[order][1:] != group[order][:-1], True)[: len(order)]]
    return last


def of_frames(spans: pd.DataFrame, libraries: Collection[str]) -> Callees:
    """The calls that recorded frames show."""
    labels, codes = spans["name"].cat.categories, spans["name"].cat.codes.to_numpy().astype(np.int64)
    ids = np.flatnonzero(spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON))
    names = {name: k for k, name in enumerate((OWN, TORCH, RECORDER, COLLECTION))}
    number, calls_on = np.zeros(len(labels), dtype=np.int64), np.zeros(len(labels), dtype=bool)
    for code in np.unique(codes[ids]).tolist():
        frame = str(labels[code])
        calls_on[code] = frames.is_user_frame(frame, libraries) or frames.loop_owner(frame) is not None
        number[code] = names.setdefault(named(frame, libraries), len(names))
    start = spans["start_ns"].to_numpy()[ids]
    end, track = start + spans["dur_ns"].to_numpy()[ids], spans["track"].to_numpy()[ids].astype(np.int64)
    up = nesting.parents(track, start, end)
    caller, name = calls_on[codes[ids]], number[codes[ids]]
    collects = np.array([callee_kind(label) is CalleeKind.GARBAGE_COLLECTION for label in names], dtype=bool)
    asked = (name == names[COLLECTION]) & (up >= 0) & collects[name[up]]
    name = np.where(asked, name[up], name)
    told = caller | ((up >= 0) & caller[up]) | np.isin(name, (names[RECORDER], names[COLLECTION]))
    calls = ((name > names[COLLECTION]) & ~asked).astype(np.int64)
    return Callees(start[told], end[told], track[told], name[told], calls[told], tuple(names))
