"""The tables of a rank, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import pandas as pd

from diagnose.facts.core.base import Facts, Missing
from diagnose.tables import host, run, schema, work
from diagnose.tables.schema import Table

_MAKERS: dict[str, Callable[[Facts], pd.DataFrame]] = {
    schema.RANKS.name: run.ranks,
    schema.STEPS.name: run.marked_steps,
    schema.KERNELS.name: work.kernels,
    schema.COPIES.name: work.copies,
    schema.COLLECTIVES.name: work.collectives,
    schema.OPS.name: host.ops,
    schema.LINES.name: host.lines,
    schema.IDLE_GAPS.name: work.gaps,
    schema.SYNCS.name: host.syncs,
    schema.MEMORY.name: host.memory,
    schema.SPANS.name: host.spans,
    schema.TRACKS.name: host.tracks,
    schema.LINKS.name: host.links,
}
"""All but `findings`, which are of a Diagnosis."""


def made(facts: Facts, names: Collection[str]) -> Iterator[tuple[Table, pd.DataFrame | Missing]]:
    """Each of the named tables that a rank has, or why it has not."""
    for table in schema.TABLES:
        if table.name in names and table.name in _MAKERS:
            try:
                yield table, _MAKERS[table.name](facts)
            except Missing as missing:
                yield table, missing.with_traceback(None)
