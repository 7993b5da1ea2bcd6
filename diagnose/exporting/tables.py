"""The tables of an export: those of the trace, each with what it needs to answer a question alone, and what is found.

Columns of the trace are described in `trace/schema.py`, all others in docs/queries.md. Unknown, and none, is null.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnose.contracts.finding import RankedFinding
from diagnose.facts.communication.collectives import collective_table, told_rows
from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.breakdown import IDLE_CAUSES, NO_DEVICE, every_launch
from diagnose.facts.core.idle import idle_gaps
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.spans import host_spans, in_used_steps, require_ops, sites_of, user_frames
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.core.work import KERNEL_KINDS, work_table
from diagnose.trace import schema
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

FINDINGS = "findings"

_OF_A_SPAN = ["name", "start_ns", "dur_ns", "track", "step"]  # Columns that other tables have as well.

_NO_DEVICE_USED = Missing("device work", "The training uses no GPU.")


def _ranks(facts: Facts) -> pd.DataFrame:
    """One row: the rank's trace and clock, how many of its steps are used (0 of a window), and their mean time."""
    used = optional(steps, facts)
    row = {
        "file": Path(facts.rank.provenance.path).name,
        "zero_unix_ns": facts.rank.zero_unix_ns,
        "used_steps": 0 if used is None or used.measure is Measure.WINDOW else used.count,
        "step_ns": pd.array([None if used is None else used.mean_ns], dtype="Int64"),
    }
    return pd.DataFrame(row)


def _steps(facts: Facts) -> pd.DataFrame:
    """A row per marked step: its bounds on the host, and as used in the report, null where it is not used."""
    marks, used = facts.rank.steps, optional(steps, facts)
    if not marks:
        raise Missing("marked steps", "Call prof.step() after each step.")
    bounds = dict[int, tuple[int, int]]()
    if used is not None and used.measure is not Measure.WINDOW:
        bounds = dict(zip(used.numbers, pairwise(used.bounds_ns.tolist()), strict=True))
    found = [bounds.get(mark.number, (None, None)) for mark in marks]
    return pd.DataFrame(
        {
            "step": np.array([mark.number for mark in marks], dtype=np.int32),
            "host_start_ns": [mark.start_ns for mark in marks],
            "host_end_ns": [mark.end_ns for mark in marks],
            "used": [mark.number in bounds for mark in marks],
            "start_ns": pd.array([start for start, _ in found], dtype="Int64"),
            "end_ns": pd.array([end for _, end in found], dtype="Int64"),
        }
    )


def _kernels(facts: Facts) -> pd.DataFrame:
    work = work_table(facts)
    kinds = np.array([kind.value for kind in KERNEL_KINDS], dtype=object)[work.kind]
    return _work(facts, schema.KERNELS).assign(kind=pd.Series(kinds, index=work.ids, dtype="string"))


def _work(facts: Facts, table: schema.Table) -> pd.DataFrame:
    """A row per kernel or copy (`table`), by span id: its op, launch, time in the queue, and source line."""
    work, recorded = work_table(facts), _recorded(facts, table)
    rows = np.isin(work.ids, recorded.index)
    launch, op, outer = work.launch[rows], work.op[rows], work.asked_by[rows]
    found = _of_spans(facts, work.ids[rows]).assign(
        used=work.in_steps[rows],
        op=_names(facts, op),
        op_id=_or_null(op),
        outer_op=_names(facts, outer),
        outer_op_id=_or_null(outer),
        launch_id=_or_null(launch),
    )
    return found.join(_queue(facts)).join(recorded).assign(**_places(facts, launch))


def _queue(facts: Facts) -> pd.DataFrame:
    """By device work, ns in the queue since its launch, and the number of operations before it."""
    found = optional(every_launch, facts)
    if found is None:
        return pd.DataFrame(columns=["queue_delay_ns", "queue_depth"], dtype="Int64")
    columns = {"queue_delay_ns": found.delay_ns, "queue_depth": found.depth}
    return pd.DataFrame(columns, index=found.work, dtype="Int64")


def _collectives(facts: Facts) -> pd.DataFrame:
    """A row per communication kernel, and per collective that gloo or MPI runs on the host."""
    table = collective_table(facts)
    recorded = _recorded(facts, schema.COLLECTIVES).reset_index(drop=True).reindex(told_rows(facts))
    found = _of_spans(facts, table.ids).assign(used=table.in_steps, on_host=table.on_host)
    found, operation = found.join(recorded.set_axis(table.ids)), pd.array(table.operation, dtype="string")
    return found.assign(operation=operation, bytes=_or_null(table.bytes)).sort_index()


def _ops(facts: Facts) -> pd.DataFrame:
    """A row per op, collective or loader span on any host thread; `self_ns` is without the spans of these inside it."""
    require_ops(facts)
    calls = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.LOADER)
    dur_ns, inner_ns = calls.end_ns - calls.start_ns, np.zeros(len(calls.ids) + 1, dtype=np.int64)
    np.add.at(inner_ns, calls.parents, dur_ns)
    found = _of_spans(facts, calls.ids).assign(
        used=in_used_steps(facts, calls.ids),
        self_ns=np.maximum(dur_ns - inner_ns[:-1], 0),
        parent_id=_or_null(np.append(calls.ids, -1)[calls.parents]),
    )
    # A call stack is as long as a page, and its place in the user's code stands beside.
    recorded = _recorded(facts, schema.OPS).drop(columns="stack")
    return found.join(recorded).assign(**_places(facts, calls.ids))


def _syncs(facts: Facts) -> pd.DataFrame:
    if "sync_events" not in facts.rank.provenance.recorded:
        how = "Profile with experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)."
        raise Missing("synchronisation events", how)
    return _of_spans(facts, facts.rank.syncs.index.to_numpy()).join(_recorded(facts, schema.SYNCS))


def _memory(facts: Facts) -> pd.DataFrame:
    if "memory" not in facts.rank.provenance.recorded:
        raise Missing("memory events", "Record with profile_memory=True, or diagnose profile --memory.")
    return _of_spans(facts, facts.rank.memory.index.to_numpy()).join(_recorded(facts, schema.MEMORY))


def _lines(facts: Facts) -> pd.DataFrame:
    """A row per stretch of host time in a function of the user's own code, with file, line and function."""
    table, sites = user_frames(facts)
    codes = table["name"].cat.codes.to_numpy()
    kept = np.isin(codes, list(sites))
    times = table.loc[kept, ["start_ns", "dur_ns", "track"]].reset_index(drop=True)
    return times.assign(**_of_sites([sites[code] for code in codes[kept].tolist()]))


def _idle_gaps(facts: Facts) -> pd.DataFrame:
    """A row per gap in used steps in which no device of the rank works: its cause, and the work that ends it."""
    found = idle_gaps(facts)
    return pd.DataFrame(
        {
            "start_ns": found.gaps.starts,
            "dur_ns": found.gaps.ends - found.gaps.starts,
            "cause": pd.array([IDLE_CAUSES[cause].value for cause in found.cause.tolist()], dtype="string"),
            "next_id": _or_null(found.next_work),
            **_of_sites(found.sites),
        }
    )


def _spans(facts: Facts, ids: IntArray | slice = slice(None)) -> pd.DataFrame:
    """The spans with these ids, all if not given, with the number of their step; null outside of steps."""
    numbers = np.array([*(mark.number for mark in facts.rank.steps), -1], dtype=np.int32)
    spans = facts.rank.spans.iloc[ids]
    return _columns_of(spans, schema.SPANS).rename_axis("id").assign(step=_or_null(numbers[spans["step"].to_numpy()]))


_MAKERS: dict[str, Callable[[Facts], pd.DataFrame]] = {
    "ranks": _ranks,
    "steps": _steps,
    "kernels": _kernels,
    "copies": lambda facts: _work(facts, schema.COPIES),
    "collectives": _collectives,
    "ops": _ops,
    "lines": _lines,
    "idle_gaps": _idle_gaps,
    "syncs": _syncs,
    "memory": _memory,
    "spans": _spans,
    "tracks": lambda facts: _recorded(facts, schema.TRACKS).rename_axis("track"),
    "links": lambda facts: _recorded(facts, schema.LINKS),
}

TABLES = (*_MAKERS, FINDINGS)


def named(names: Sequence[str]) -> tuple[str, ...]:
    """These tables, or all if none is named. Raises ValueError if there is no such table."""
    for name in names:
        if name not in TABLES:
            raise ValueError(f"There is no table {name}. Choose from: {', '.join(TABLES)}.")
    return tuple(names) or TABLES


def made(facts: Facts, names: Collection[str]) -> Iterator[tuple[str, pd.DataFrame | Missing]]:
    """Each of the named tables but `findings`, or why there is none. An index with a name is a column, too."""
    for name, make in _MAKERS.items():
        if name in names:
            try:
                yield name, make(facts)
            except Missing as missing:
                none = missing == NO_DEVICE and trains_on_cpu(facts)
                yield name, _NO_DEVICE_USED if none else missing.with_traceback(None)


def findings(found: Sequence[RankedFinding]) -> pd.DataFrame:
    """The table of the findings of a Diagnosis."""
    savings = np.array([one.shown_ns for one in found], dtype=np.int64).reshape(-1, 3).T
    return pd.DataFrame(
        {
            "number": np.array([one.rank_order for one in found], dtype=np.int32),
            **{name: _texts(getattr(one, name) for one in found) for name in ("rule", "code", "title")},
            **dict(zip(("saving_low_ns", "saving_ns", "saving_high_ns"), savings, strict=True)),
            "share_of_step": np.array([one.share_of_step for one in found], dtype=np.float64),
            "confidence": _texts(one.confidence.level.value for one in found),
            "minor": np.array([one.minor for one in found], dtype=np.bool_),
            "ranks": np.array([len(one.where.ranks) for one in found], dtype=np.int32),
            "evidence": _texts(one.evidence[0].text if one.evidence else None for one in found),
            "fix": _texts(one.fixes[0].do if one.fixes else None for one in found),
            **_of_sites([one.site for one in found]),
        }
    )


def _recorded(facts: Facts, table: schema.Table) -> pd.DataFrame:
    return _columns_of(getattr(facts.rank, table.name), table)


def _columns_of(frame: pd.DataFrame, table: schema.Table) -> pd.DataFrame:
    columns = {name: _known(frame[name], column.unknown) for name, column in table.columns.items()}
    return pd.DataFrame(columns, index=frame.index, copy=False)


def _known(values: Any, unknown: int | None = -1) -> Any:
    """A nullable column, with null for what is unknown; texts instead of categories, which differ from rank to rank."""
    if pd.api.types.is_bool_dtype(values):
        return values.astype("boolean")
    if pd.api.types.is_integer_dtype(values):
        return values.astype(values.dtype.name.capitalize()).mask(values == unknown)
    if pd.api.types.is_float_dtype(values):
        return values
    texts = values.astype("string")
    return texts.mask(texts == "")


def _or_null(numbers: IntArray) -> Any:
    return pd.arrays.IntegerArray(numbers, numbers == -1)


def _of_spans(facts: Facts, ids: IntArray) -> pd.DataFrame:
    return _spans(facts, ids)[_OF_A_SPAN]


def _names(facts: Facts, ids: IntArray) -> Any:
    return _known(facts.rank.spans["name"].reindex(ids)).array


def _places(facts: Facts, ids: IntArray) -> dict[str, Any]:
    """Columns with the places in the user's code that led to these host spans; null for the id -1."""
    sites, known = np.full(len(ids), None, dtype=object), ids >= 0
    sites[known] = sites_of(facts, ids[known])
    return _of_sites(sites.tolist())


def _of_sites(sites: Sequence[Site | None]) -> dict[str, Any]:
    return {
        "file": _texts(None if one is None else one.file for one in sites),
        "line": pd.array([one.line or None if one else None for one in sites], dtype="Int32"),
        "function": _texts(None if one is None else one.function for one in sites),
    }


def _texts(values: Iterator[str | None]) -> Any:
    return pd.array(list(values), dtype="string")
