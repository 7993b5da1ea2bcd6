"""The tables of a rank, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import pandas as pd

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.breakdown import NO_DEVICE
from diagnose.facts.core.run import trains_on_cpu
from diagnose.tables import host, run, schema, work
from diagnose.tables.frame import empty
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
    schema.SPENDING.name: run.spent,
    schema.SYNCS.name: host.syncs,
    schema.MEMORY.name: host.memory,
    schema.SPANS.name: host.spans,
    schema.TRACKS.name: host.tracks,
    schema.LINKS.name: host.links,
}
"""All but `findings`, which are of a Diagnosis."""


def made(facts: Facts, names: Collection[str]) -> Iterator[tuple[Table, pd.DataFrame | Missing]]:
    """Each of the named tables that a rank has, or why it has not.

    A training that is known to use no device has tables of devices, without rows.
    """
    for table in schema.TABLES:
        if table.name in names and table.name in _MAKERS:
            try:
                yield table, _MAKERS[table.name](facts)
            except Missing as missing:
                none = missing == NO_DEVICE and trains_on_cpu(facts)
                yield table, empty(table) if none else missing.with_traceback(None)
