"""Which function of an installed package did the work that a line of the user's code asked for?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, once
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.source_lines import frame_sites
from diagnose.facts.core.steps import host_window, steps
from diagnose.trace import enums, frames, intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

MOST = 0.5  # A function is named if it takes this share of the time (our choice).


class LibraryCall(Struct, frozen=True):
    """A function of an installed package with most of some time."""

    function: str  # As `scipy.ndimage.zoom`.
    site: Site  # The user's function that called it.
    ns: int  # In it, per step, without code of the user's that it calls.
    share: float  # Of the time that was asked for.


def library_call(facts: Facts, times: Intervals, tracks: IntArray) -> LibraryCall | None:
    """The library function with most of these times of host threads; None if there is none. Shapes (times,).

    Times outside of the used steps do not count. Of functions that call each other the first counts: the one that the
    user's code called. Raises Missing without call stacks.
    """
    table, (begin, end) = _table(facts), host_window(facts)
    spent, whole = np.zeros(len(table.start_ns), dtype=np.int64), 0
    for track in np.unique(tracks):
        asked = intervals.clip(intervals.union_of(times, tracks == track), begin, end)
        mine = table.track == track
        spent[mine] = intervals.covered(Intervals(table.start_ns[mine], table.end_ns[mine]), asked)
        whole += asked.total
    inner = np.zeros(len(spent), dtype=np.int64)
    np.add.at(inner, table.parent[table.parent >= 0], spent[table.parent >= 0])
    called = table.entry >= 0
    ns = np.zeros(len(spent), dtype=np.int64)
    np.add.at(ns, table.entry[called], (spent - inner)[called])
    by_name = np.zeros(len(table.names), dtype=np.int64)
    np.add.at(by_name, table.name[table.name >= 0], ns[table.name >= 0])
    longest = int(by_name.argmax()) if len(by_name) else 0
    if not whole or not len(by_name) or by_name[longest] < MOST * whole:
        return None
    entry = int(np.flatnonzero(table.name == longest)[ns[table.name == longest].argmax()])
    total = int(by_name[longest])
    caller = table.sites[int(table.code[table.parent[entry]])]
    return LibraryCall(table.names[longest], caller, round_half_up(total, steps(facts).count), total / whole)


class _Frames(Struct, frozen=True):
    """Frames of the user's code and of installed packages. Arrays of shape (frames,)."""

    start_ns: IntArray
    end_ns: IntArray
    track: IntArray
    code: IntArray  # Of the category of its name.
    name: IntArray  # Position in `names` of those that the user's code called; -1 of all others.
    parent: IntArray  # The innermost of these frames around it, or -1.
    entry: IntArray
    """Of a package's frame the outermost one that leads to it without code of the user's; -1 without such a caller."""
    names: tuple[str, ...]
    sites: dict[int, Site]


@once
def _table(facts: Facts) -> _Frames:
    spans, sites = facts.rank.spans, frame_sites(facts)
    codes, labels = spans["name"].cat.codes.to_numpy().astype(np.int64), spans["name"].cat.categories
    python = np.flatnonzero(spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON))
    called = {
        int(code): function
        for code in np.unique(codes[python])
        if int(code) not in sites and (function := frames.library_function(labels[code], facts.rank.libraries))
    }
    ids = python[np.isin(codes[python], [*sites, *called])]
    start = spans["start_ns"].to_numpy()[ids]
    end, track, code = (
        start + spans["dur_ns"].to_numpy()[ids],
        spans["track"].to_numpy()[ids].astype(np.int64),
        codes[ids],
    )
    parent = nesting.parents(track, start, end)
    is_user = np.isin(code, list(sites))
    entry = _entries(parent, is_user)
    names = tuple(dict.fromkeys(called.values()))
    number = {one: names.index(function) for one, function in called.items()}
    own = entry == np.arange(len(ids))
    name = np.where(own, np.array([number.get(int(one), -1) for one in code], dtype=np.int64), nesting.NONE)
    return _Frames(start, end, track, code, name, parent, entry, names, sites)


def _entries(parent: IntArray, is_user: npt.NDArray[np.bool_]) -> IntArray:
    """For each frame of a package the one that the user's code called and that led to it; -1 for all others."""
    entry = np.where(is_user, nesting.NONE, np.arange(len(parent)))
    climbing = np.flatnonzero(~is_user)
    while len(climbing):
        above = parent[entry[climbing]]
        entry[climbing[above < 0]] = nesting.NONE
        inside = (above >= 0) & ~is_user[above]
        climbing, above = climbing[inside], above[inside]
        entry[climbing] = above
    return entry
