"""In which function of the framework that owns the training loop some host time passes."""

from __future__ import annotations

import numpy as np

from diagnose.facts.core.base import Facts, once
from diagnose.facts.core.source_lines import sites_at
from diagnose.facts.core.spans import host_spans
from diagnose.trace import enums, frames, kinds, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray, Intervals
from diagnose.trace.kinds import Activity

MOST = 0.5  # A function is named if it takes this share of the time (our choice).


def framework_frame(facts: Facts, times: Intervals, tracks: IntArray, inside: bool = False) -> Site | None:
    """The framework's function with most of these times of host threads, at the line with most of them.

    Each time is taken for what runs in its middle. `inside`: that function may have less, if all its functions have.

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
    if not most or spent.sum() < MOST * times.total or not (inside or spent[most].sum() >= MOST * times.total):
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
