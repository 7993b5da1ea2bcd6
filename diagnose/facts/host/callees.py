"""What lines of the user's code call: functions of libraries and of frameworks, and how long they take."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, once
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.run import marked_ranges
from diagnose.facts.core.spans import (
    HostSpans,
    frame_sites,
    host_spans,
    idle_under,
    on_training_threads,
    sites_at,
    sites_of,
    used_step,
)
from diagnose.facts.core.steps import host_window, steps
from diagnose.trace import enums, frames, intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import MOST, OWN, RECORDER, TORCH, Callees, Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity, CalleeKind, callee_kind

WHOLE = (CalleeKind.LOG, CalleeKind.METRIC, CalleeKind.SAVE, CalleeKind.LOAD, CalleeKind.COPY)
"""Calls of which all is theirs, ops and launches in them as well: a fix that calls them seldom saves these, too."""


class Callee(Struct, frozen=True):
    """A function of a library that a line of the user's code spends MOST of some time in."""

    name: str  # As `json.dumps`; all of the framework together are `torch`.
    kind: CalleeKind
    ns: int  # Per step.
    calls: float  # Per step; 0 if that is not known.


@once
def called(facts: Facts) -> Callees:
    """What lines of the user's code call, by the detail recording, else by the recording's frames; empty without."""
    lines = facts.rank.lines
    if not len(lines):
        return frames.of_frames(facts.rank.spans, facts.rank.libraries)
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
    """The library function that takes MOST of some pauses of the used steps; None if none does.

    `ns`, `name`: time of each pause, and what it calls, a position in `called(facts).names`. `times`: by thread, where
    calls that begin are counted.
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
    return Callee(frames.short(frame), kind, round_half_up(int(spent[most]), count), begun / count)


MAIN_SHARE = 0.5  # A function is named if it takes this share of the time (our choice).


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
    table, (begin, end) = _library_frames(facts), host_window(facts)
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
    if not whole or not len(by_name) or by_name[longest] < MAIN_SHARE * whole:
        return None
    entry = int(np.flatnonzero(table.name == longest)[ns[table.name == longest].argmax()])
    total = int(by_name[longest])
    caller = table.sites[int(table.code[table.parent[entry]])]
    return LibraryCall(table.names[longest], caller, round_half_up(total, steps(facts).count), total / whole)


class _LibraryFrames(Struct, frozen=True):
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
def _library_frames(facts: Facts) -> _LibraryFrames:
    """Python frames of the user's functions and of named library functions, with their parents and entries."""
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
    parent = intervals.parents(track, start, end)
    is_user = np.isin(code, list(sites))
    entry = _entries(parent, is_user)
    names = tuple(dict.fromkeys(called.values()))
    number = {one: names.index(function) for one, function in called.items()}
    is_entry = entry == np.arange(len(ids))
    name = np.where(is_entry, np.array([number.get(int(one), -1) for one in code], dtype=np.int64), intervals.NONE)
    return _LibraryFrames(start, end, track, code, name, parent, entry, names, sites)


def _entries(parent: IntArray, is_user: npt.NDArray[np.bool_]) -> IntArray:
    """For each frame of a package the one that the user's code called and that led to it; -1 for all others."""
    entry = np.where(is_user, intervals.NONE, np.arange(len(parent)))
    climbing = np.flatnonzero(~is_user)
    while len(climbing):
        above = parent[entry[climbing]]
        entry[climbing[above < 0]] = intervals.NONE
        inside = (above >= 0) & ~is_user[above]
        climbing, above = climbing[inside], above[inside]
        entry[climbing] = above
    return entry


OWNED_SHARE = 0.5  # A function is named if it takes this share of the time (our choice).


def framework_frame(facts: Facts, times: Intervals, tracks: IntArray, inside: bool = False) -> Site | None:
    """The framework's function with OWNED_SHARE of these times of host threads, at its line with most of them.

    Each time counts to what runs in its middle. `inside`: OWNED_SHARE is asked of all functions of frameworks together.

    None if no function has OWNED_SHARE, or if no frames of frameworks were recorded. Shapes (times,).
    """
    start, end, track, name = _framework_times(facts)
    if not len(start) or not times.size:
        return None
    found = intervals.innermost_at((times.starts + times.ends) // 2, tracks, track, start, end)
    names = _framework_names(facts)
    spent = np.bincount(name[found[found >= 0]], (times.ends - times.starts)[found >= 0], minlength=len(names))
    functions: dict[tuple[str, str], list[int]] = {}
    for code in np.flatnonzero(spent).tolist():
        if site := frames.frame_site(names[code]):
            functions.setdefault((site.file, site.function), []).append(code)
    most = max(functions.values(), key=lambda codes: spent[codes].sum(), default=[])
    if (
        not most
        or spent.sum() < OWNED_SHARE * times.total
        or not (inside or spent[most].sum() >= OWNED_SHARE * times.total)
    ):
        return None
    return frames.frame_site(names[max(most, key=lambda code: spent[code])])


@once
def runs_loop(facts: Facts) -> frozenset[tuple[str, str]]:
    """File and name of the user's functions that run the training loop: innermost while optimizers step."""
    found = host_spans(
        facts, SpanKind.OP, SpanKind.ANNOTATION, named=lambda name: kinds.activity(name) is Activity.OPTIMIZER_STEP
    )
    sites = sites_at(facts, (found.start_ns + found.end_ns) // 2, found.track)
    return frozenset((site.file, site.function) for site in sites if site)


@once
def _framework_names(facts: Facts) -> list[str]:
    """Names of frames: the categories of `framework` in `lines`, then those of `name` in `spans`."""
    lines, spans = facts.rank.lines["framework"].cat.categories, facts.rank.spans["name"].cat.categories
    return [*map(str, lines), *map(str, spans)]


@once
def _framework_times(facts: Facts) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(start, end, thread, position in `_framework_names`) of each stretch in a framework's function, as arrays."""
    lines, spans = facts.rank.lines, facts.rank.spans
    names = spans["name"].cat
    codes = names.codes.to_numpy().astype(np.int64)
    python = spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON)
    own = [code for code in np.unique(codes[python]).tolist() if frames.loop_owner(str(names.categories[code]))]
    ids = np.flatnonzero(python & np.isin(codes, own))
    told = np.flatnonzero((lines["framework"] != "").to_numpy())
    start = np.concatenate((lines["start_ns"].to_numpy()[told], spans["start_ns"].to_numpy()[ids]))
    length = np.concatenate((lines["dur_ns"].to_numpy()[told], spans["dur_ns"].to_numpy()[ids]))
    track = np.concatenate((lines["track"].to_numpy()[told], spans["track"].to_numpy()[ids])).astype(np.int64)
    of_lines = lines["framework"].cat.codes.to_numpy()[told].astype(np.int64)
    name = np.concatenate((of_lines, codes[ids] + len(lines["framework"].cat.categories)))
    return start, start + length, track, name


_ON_HOST = (SpanKind.OP, SpanKind.ANNOTATION, SpanKind.PYTHON)


class Texts(Struct, frozen=True):
    """Tensors that training threads write as text, one after the other."""

    spans: HostSpans
    count: int  # Per step.
    host_ns: int  # Per step.
    idle_ns: int | None  # Idle time of the device under them, per step; None without device work.
    steps_seen: int  # Used steps with at least one.
    site: Site | None  # The line that writes the longest.


@fact
def texts(facts: Facts) -> Texts:
    """Raises Missing if none was recorded, and neither stacks nor `diagnose profile` would show them."""
    named = host_spans(facts, *_ON_HOST, named=lambda name: kinds.activity(name) is Activity.TEXT)
    found = on_training_threads(facts, named).outermost()
    unseen = "stacks" not in facts.rank.provenance.recorded and Activity.TEXT.value not in marked_ranges(facts)
    if not len(found.ids) and unseen:
        raise Missing("printing and formatting of tensors", "Record with diagnose profile, or with_stack=True.")
    inside = found.in_steps(facts)
    lasted, count = inside.end_ns - inside.start_ns, steps(facts).count
    return Texts(
        spans=found,
        count=round_half_up(len(inside.ids), count),
        host_ns=round_half_up(int(lasted.sum()), count),
        idle_ns=idle_under(facts, inside.times),
        steps_seen=len(np.unique(used_step(facts, inside.ids))),
        site=sites_of(facts, inside.ids[[int(lasted.argmax())]])[0] if len(lasted) else None,
    )
