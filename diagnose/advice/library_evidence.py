"""What a finding says of installed packages: the function in which most of its host time lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from diagnose.contracts.finding import Evidence, Finding, RuleName
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.host.library_calls import LibraryCall, library_call
from diagnose.replay.edits import Move, Shorten
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
        return [(page, _told(one, _call(facts, one))) for page, one in found]
    except Missing:
        return list(found)


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
    if call is None or not call.ns:
        return finding
    where = "" if call.site == finding.site else f" ({call.site.file}:{call.site.line})"
    text = f"Of this, {duration(call.ns)} a step is in {call.function}, which `{call.site.function}`{where} calls."
    return replace(finding, evidence=(*finding.evidence, Evidence(text, call.ns, "ns")))
