"""Which line of the user's code was running, where call stacks were recorded, or joined from a detail recording."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from diagnose.facts.core.base import Facts, Missing, fact
from diagnose.facts.core.host import enclosing_op, host_threads
from diagnose.facts.core.spans import HostSpans
from diagnose.trace import enums, frames, intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

MOSTLY = 0.5  # Share of some time at one line, from which on that stands for all of it (our choice).


@fact
def frame_sites(facts: Facts) -> dict[int, Site]:
    """Site by code of the `name` category, for frames of the user's own code. Raises Missing without stacks.

    Empty where lines are known from the detail recording or samples only: see `sites_at`.
    """
    if not facts.rank.provenance.knows("stacks"):
        raise Missing("call stacks", "Record with with_stack=True.")
    spans = facts.rank.spans
    names = spans["name"].cat
    is_python = spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON)
    sites: dict[int, Site] = {}
    for code in np.unique(names.codes.to_numpy()[is_python]):
        name = names.categories[code]
        if frames.is_user_frame(name, facts.rank.libraries) and (site := frames.frame_site(name)):
            sites[int(code)] = site
    return sites


def sites_at(facts: Facts, moments_ns: IntArray, tracks: IntArray) -> list[Site | None]:
    """The innermost line of the user's code open at each moment on its thread, else on the main thread.

    What a lambda runs is of the function that holds its line. All None where no stacks were recorded.
    """
    try:
        table, sites = user_frames(facts)
    except Missing:
        return [None] * len(moments_ns)
    track = table["track"].to_numpy().astype(np.int64)
    start = table["start_ns"].to_numpy()
    end = start + table["dur_ns"].to_numpy()
    found = nesting.innermost_at(moments_ns, tracks, track, start, end)
    lost = found < 0
    main = np.full(int(lost.sum()), host_threads(facts).main, dtype=np.int64)
    found[lost] = nesting.innermost_at(moments_ns[lost], main, track, start, end)
    of_frame = table["name"].cat.codes.to_numpy()
    named = {(site.file, site.line): site for site in sites.values() if not site.function.startswith("<")}
    held = {code: named.get((site.file, site.line), site) for code, site in sites.items() if site.line}
    return [held.get(int(of_frame[k]), sites[int(of_frame[k])]) if k >= 0 else None for k in found]


def user_frames(facts: Facts) -> tuple[pd.DataFrame, dict[int, Site]]:
    """Frames of the user's code (start_ns, dur_ns, track, name), and the site by code of the name. Raises Missing."""
    sites, lines = frame_sites(facts), facts.rank.lines
    if len(lines):
        names = enumerate(lines["name"].cat.categories)
        return lines, {code: site for code, name in names if (site := frames.frame_site(str(name)))}
    spans = facts.rank.spans
    is_python = spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.PYTHON)
    return spans[is_python & np.isin(spans["name"].cat.codes.to_numpy(), list(sites))], sites


def first_of_function(facts: Facts, site: Site | None, times: Intervals, track: int) -> Site | None:
    """The first line of a site's function that runs on the thread at these times: of a loop, that of its head."""
    if site is None or not facts.rank.provenance.knows("stacks"):
        return site
    table, sites = user_frames(facts)
    same = [code for code, one in sites.items() if (one.file, one.function) == (site.file, site.function) and one.line]
    start, codes = table["start_ns"].to_numpy(), table["name"].cat.codes.to_numpy()
    mine = np.isin(codes, same) & (table["track"].to_numpy() == track)
    mine &= intervals.covered(Intervals(start, start + table["dur_ns"].to_numpy()), times) > 0
    return min((sites[code] for code in np.unique(codes[mine]).tolist()), key=lambda one: one.line, default=site)


def cut_at_frames(facts: Facts, times: Intervals, track: int) -> Intervals:
    """A normal set of times in pieces, in each of which one line of the user's code runs on the thread.

    Raises Missing without call stacks.
    """
    return intervals.cut(times, _edges(facts, track))[0]


def _edges(facts: Facts, track: int) -> IntArray:
    """When frames of the user's code begin and end on a thread. Raises Missing."""
    table, _ = user_frames(facts)
    mine = table[table["track"] == track]
    start = mine["start_ns"].to_numpy()
    return np.concatenate((start, start + mine["dur_ns"].to_numpy()))


def site_of_most(sites: Sequence[Site | None], ns: IntArray) -> Site | None:
    """The line that MOSTLY of some time is at."""
    sums: dict[Site | None, int] = {}
    for site, lasted in zip(sites, ns.tolist(), strict=True):
        sums[site] = sums.get(site, 0) + lasted
    site, most = max(sums.items(), key=lambda item: item[1], default=(None, 0))
    return site if most >= MOSTLY * ns.sum() else None


def site_of_spans(facts: Facts, spans: HostSpans) -> Site | None:
    """The line at which most of the time of host spans goes, each by its middle."""
    return site_of_most(
        sites_at(facts, (spans.start_ns + spans.end_ns) // 2, spans.track), spans.end_ns - spans.start_ns
    )


def sites_of(facts: Facts, ids: IntArray) -> list[Site | None]:
    """The line of the user's code that led to each host span; also from an op's own call stack (old recordings).

    A call of the system runs no Python, so its middle has the line as well: stacks of other steps are placed between
    ops, and less exactly than that it begins.
    """
    spans = facts.rank.spans
    dur_ns = spans["dur_ns"].to_numpy()[ids]
    is_system = spans["kind"].cat.codes.to_numpy()[ids] == enums.code(SpanKind.SYSTEM)
    moments_ns = spans["start_ns"].to_numpy()[ids] + np.where(is_system, dur_ns // 2, 0)
    found = sites_at(facts, moments_ns, spans["track"].to_numpy()[ids].astype(np.int64))
    stacks = facts.rank.ops["stack"]
    if any(site is None for site in found) and len(stacks.cat.categories) > 1:
        for k, op in enumerate(enclosing_op(facts, ids)):
            if found[k] is None and op >= 0 and op in stacks.index:
                found[k] = _from_stack(str(stacks[op]), facts.rank.libraries)
    return found


def _from_stack(stack: str, libraries: Collection[str]) -> Site | None:
    stripped = (frame.strip() for frame in stack.split(";"))
    return next((frames.frame_site(frame) for frame in stripped if frames.is_user_frame(frame, libraries)), None)
