"""What a finding says of installed packages: the function in which most of its host time lies."""

from collections.abc import Iterable
from pathlib import PurePath

import numpy as np
from msgspec.structs import replace

from diagnose.advice.fixes_of_run import written
from diagnose.contracts.finding import Evidence, Finding, Fix, Kind, RuleName
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.host.callees import LibraryCall, framework_frame, library_call, runs_loop
from diagnose.facts.run.program import loop_owner
from diagnose.fixes.frameworks import NAMES, OWNERS, own_work
from diagnose.fixes.setting import Loop
from diagnose.replay.edits import Move, Remove, Shorten
from diagnose.replay.shown import selected
from diagnose.trace import enums
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import Intervals
from diagnose.trace.units import duration

_CODE_OF_THE_USER = (SpanKind.LOADER, SpanKind.PYTHON, SpanKind.ANNOTATION)
"""Spans around code that may be anyone's; ops are the framework's."""


def added(facts: Facts, found: Iterable[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings, those on time of the host with the library function that takes most of it, where frames tell."""
    try:
        return [(page, _told(finding, _call(facts, finding))) for page, finding in found]
    except Missing:
        return list(found)


def with_framework(facts: Facts, found: Iterable[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings, those on host time in a framework's own code with the setting of the framework that causes it."""
    loop = loop_owner(facts)
    return [(page, finding if loop is Loop.OWN else _of_framework(facts, loop, finding)) for page, finding in found]


def _of_framework(facts: Facts, loop: Loop, finding: Finding) -> Finding:
    edits = [edit for edit in finding.edits if isinstance(edit, Shorten | Remove | Move)]
    if not edits or finding.per_sample or not (finding.host_bound or any(isinstance(edit, Remove) for edit in edits)):
        return finding
    spans, on_host = facts.rank.spans, (facts.rank.tracks["device"] < 0).to_numpy()
    track, starts, ends, tracks, ops = spans["track"].to_numpy(), [], [], [], set[str]()
    for times, owner in (selected(facts, edit) for edit in edits):
        of = np.full(times.size, owner) if isinstance(owner, int) else track[owner]
        starts.append(times.starts[on_host[of]])
        ends.append(times.ends[on_host[of]])
        tracks.append(of[on_host[of]].astype(np.int64))
        ops.update(() if isinstance(owner, int) else map(str, spans["name"].iloc[owner].unique()))
    own, settings = finding.site, tuple(fix for fix in finding.fixes if fix.setting is not None)
    # Where the user's innermost function runs the framework's loop, none of the user's code can do less.
    inside = loop in OWNERS and not settings and own is not None and (own.file, own.function) in runs_loop(facts)
    times = Intervals(np.concatenate(starts), np.concatenate(ends))
    site = framework_frame(facts, times, np.concatenate(tracks), inside)
    if site is None:
        return finding
    work, name = own_work(loop, site.file, site.function, frozenset(ops)), NAMES[loop]
    where = f"`{site.function}` ({replace(site, file=PurePath(site.file).name).place})"
    if work is None and settings:
        return finding
    if work is None:
        evidence = (
            *finding.evidence,
            Evidence(f"{name} does this itself, mostly in {where}; no setting is known to avoid it."),
        )
        if not inside:
            return replace(finding, evidence=evidence)
        newer = Fix(f"Try a newer version of {name}.", effort=3)
        title = f"Python of {name} itself stalls the training"
        return replace(finding, evidence=evidence, fixes=(newer,), title=title, kind=Kind.WHERE_TO_LOOK)
    told = Evidence(f"Most of this is in {where} of {name}, which {work.what}.")
    do = f"Set {work.setting.name}: {name} {work.what}."
    fix = Fix(do, after=written(work.setting))
    return replace(finding, evidence=(*finding.evidence, told), fixes=(fix, *settings))


def _call(facts: Facts, finding: Finding) -> LibraryCall | None:
    """The library function with most of the host time that the finding's fix would shorten."""
    spans = facts.rank.spans
    kind, track = spans["kind"].cat.codes.to_numpy(), spans["track"].to_numpy()
    own = [enums.code(one) for one in _CODE_OF_THE_USER]
    starts, ends, tracks = [], [], []
    for edit in finding.edits:
        if not isinstance(edit, Shorten | Move):
            continue
        times, owner = selected(facts, edit)
        chosen = np.ones(times.size, dtype=bool) if isinstance(owner, int) else np.isin(kind[owner], own)
        starts.append(times.starts[chosen])
        ends.append(times.ends[chosen])
        tracks.append(np.broadcast_to(owner if isinstance(owner, int) else track[owner], times.size)[chosen])
    if not sum(map(len, starts)):
        return None
    return library_call(facts, Intervals(np.concatenate(starts), np.concatenate(ends)), np.concatenate(tracks))


def _told(finding: Finding, call: LibraryCall | None) -> Finding:
    if call is None or not call.ns or call.function in finding.title:
        return finding
    where = "" if call.site == finding.site else f" ({call.site.place})"
    text = f"{duration(call.ns)}/step of this is in {call.function}, called by `{call.site.function}`{where}."
    return replace(finding, evidence=(*finding.evidence, Evidence(text, call.ns, "ns")))
