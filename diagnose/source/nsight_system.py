"""What the operating system did with the threads that drive the training, as Nsight Systems records it."""

from __future__ import annotations

import numpy as np

from diagnose.source import nvtx
from diagnose.source.columns import Array, Columns
from diagnose.source.nsight_events import OF_HOST, RUNTIME, named
from diagnose.source.sqlite import UNKNOWN, Database
from diagnose.trace.enums import SpanKind

OSRT, SCHED = "OSRT_API", "SCHED_EVENTS"
OFF_CORE = "off the processor"
"""Name of the times in which a thread was on no core; why, only the call around it can tell."""

LEAST_NS = 10_000
"""Shorter ones cannot be why a device waits: queued work takes as long to start (facts.idle.TURNAROUND_NS)."""


def add_system(db: Database, columns: Columns, process: int) -> None:
    """Append long calls of the operating system, and times off the processor, while there was other work to see.

    Only of threads that call CUDA, else of those with ranges: what helper threads wait for holds up nobody.
    """
    threads = _threads(db, process)
    if not threads or process == UNKNOWN or not columns.rows:
        return
    first = min(int(chunk.min()) for chunk in columns.spans["ts_ns"] if len(chunk))
    ends = zip(columns.spans["ts_ns"], columns.spans["dur_us"], strict=True)
    last = max(int((start + np.maximum(dur, 0) * 1000).max()) for start, dur in ends if len(start))
    listed = f'"globalTid" IN ({", ".join(map(str, threads))})'
    calls = db.columns(OSRT, ("start", "end", "globalTid", "nameId"), listed) if db.has(OSRT, "globalTid") else {}
    if calls:
        _append(columns, calls, named(db, columns, calls["nameId"]), first, last)
    if db.has(SCHED, "start", "globalTid", "isSchedIn"):
        off = _off_core(db.columns(SCHED, ("start", "globalTid", "isSchedIn"), listed))
        _append(columns, off, np.full(len(off["start"]), columns.names[OFF_CORE], dtype=np.int32), first, last)


def _threads(db: Database, process: int) -> list[int]:
    there = (table for table in (RUNTIME, nvtx.TABLE) if db.has(table, "globalTid"))
    found = (db.distinct(table, ['CAST("globalTid" AS INTEGER)'], OF_HOST, process) for table in there)
    return [thread for (thread,) in next(filter(None, found), [])]


def _off_core(switches: dict[str, Array]) -> dict[str, Array]:
    order = np.lexsort((switches["start"], switches["globalTid"]))
    start, thread, on = (switches[name][order] for name in ("start", "globalTid", "isSchedIn"))
    left = np.flatnonzero((on[:-1] == 0) & (on[1:] == 1) & (thread[:-1] == thread[1:]))
    return {"start": start[left], "end": start[left + 1], "globalTid": thread[left]}


def _append(columns: Columns, found: dict[str, Array], names: Array, first: int, last: int) -> None:
    """Those that last and begin within the given time, cut off at its end."""
    end = np.minimum(found["end"], last)
    kept = (end - found["start"] >= LEAST_NS) & (found["start"] >= first)
    count = int(kept.sum())
    columns.add_spans(
        SpanKind.SYSTEM,
        name=names[kept],
        track=nvtx.tracks(columns, found["globalTid"][kept]),
        ts_ns=found["start"][kept],
        dur_us=(end - found["start"])[kept] / 1000,
        correlation=np.full(count, UNKNOWN, dtype=np.int64),
        external_id=np.full(count, UNKNOWN, dtype=np.int64),
    )
