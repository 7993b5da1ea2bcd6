"""In which function of the framework that owns the training loop some host time passes."""

from __future__ import annotations

import numpy as np

from diagnose.facts.core.base import Facts, once
from diagnose.trace import enums, frames, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals

MOST = 0.5  # A function is named if it takes this share of the time (our choice).


def framework_frame(facts: Facts, times: Intervals, tracks: IntArray) -> Site | None:
    """The framework's function with most of these times of host threads, at the line with most of them.

    Each time is taken for what runs in its middle.

    None where no function has, or where no frames of frameworks were recorded. Shapes (times,).
    """
    start, end, track, name = _frames(facts)
    if not len(start) or not times.size:
        return None
    found = nesting.innermost_at((times.starts + times.ends) // 2, tracks, track, start, end)
    names = _names(facts)
    spent = np.bincount(name[found[found >= 0]], (times.ends - times.starts)[found >= 0], minlength=len(names))
    functions: dict[tuple[str, str], list[int]] = {}
    for code in np.flatnonzero(spent).tolist():
        if site := frames.frame_site(names[code]):
            functions.setdefault((site.file, site.function), []).append(code)
    most = max(functions.values(), key=lambda codes: spent[codes].sum(), default=[])
    if not most or spent[most].sum() < MOST * times.total:
        return None
    return frames.frame_site(names[max(most, key=lambda code: spent[code])])


@once
def _names(facts: Facts) -> list[str]:
    """Of frames, first those that a detail recording told, then those of the recording itself."""
    lines, spans = facts.rank.lines["framework"].cat.categories, facts.rank.spans["name"].cat.categories
    return [*map(str, lines), *map(str, spans)]


@once
def _frames(facts: Facts) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Start, end, thread and position in `_names` of each stretch in a framework's function. Shape (stretches,)."""
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
