"""Which functions of libraries do lines of the user's code call, and how long do they take?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, once
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.steps import host_window, steps
from diagnose.trace import callees, intervals
from diagnose.trace.callees import MOST, OWN, RECORDER, TORCH, Callees
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import CalleeKind, callee_kind

WHOLE = (CalleeKind.LOG, CalleeKind.METRIC, CalleeKind.SAVE, CalleeKind.LOAD, CalleeKind.COPY)
"""Calls of which all is theirs, ops and launches in them as well: a fix that calls them seldom saves these, too."""


class Callee(Struct, frozen=True):
    """A function of a library that takes most of some time of a line."""

    name: str  # As `json.dumps`; all of the framework together are `torch`.
    kind: CalleeKind
    ns: int  # Per step.
    calls: float  # Per step; 0 if that is not known.


@once
def called(facts: Facts) -> Callees:
    """What lines call, by the detail recording or by the recording's own frames; nothing without stacks."""
    lines = facts.rank.lines
    if not len(lines):
        return callees.of_frames(facts.rank.spans, facts.rank.libraries)
    start = lines["start_ns"].to_numpy()
    names = tuple(map(str, lines["callee"].cat.categories))
    return Callees(
        start_ns=start,
        end_ns=start + lines["dur_ns"].to_numpy(),
        track=lines["track"].to_numpy().astype(np.int64),
        name=lines["callee"].cat.codes.to_numpy().astype(np.int64),
        calls=lines["calls"].to_numpy(),
        names=names,
    )


@once
def whole_calls(facts: Facts) -> Intervals:
    """When a training thread was in a call of a kind in WHOLE. A normal set."""
    table = called(facts)
    kinds_of = np.array([callee_kind(name) in WHOLE for name in table.names], dtype=bool)
    own = kinds_of[table.name] & np.isin(table.track, host_threads(facts).training)
    return intervals.union(Intervals(table.start_ns[own], table.end_ns[own]))


def callee(facts: Facts, ns: IntArray, name: IntArray, times: Sequence[tuple[int, Intervals]]) -> Callee | None:
    """What takes most of pauses in the used steps, of which `ns` count and `name` says what each calls.

    `times`: by track those in which calls that begin count; of the whole recording.
    """
    table, count, (begin, end) = called(facts), steps(facts).count, host_window(facts)
    spent = np.bincount(name, ns, len(table.names))
    most = int(spent.argmax())
    frame = table.names[most]
    if frame == OWN or not spent[most] or spent[most] < MOST * ns.sum():
        return None
    begun = 0
    for track, at in times:
        own = intervals.clip(at, begin, end)
        begun += int(table.begun(own, np.full(own.size, track), np.full(own.size, most)).sum())
    kind = CalleeKind.TORCH if frame in (TORCH, RECORDER) else callee_kind(frame)
    return Callee(callees.short(frame), kind, round_half_up(int(spent[most]), count), begun / count)
