"""Tables of Nsight Systems' exports as columns: device work, calls, what the system did with threads."""

import re

import numpy as np

from diagnose.source import nvtx
from diagnose.source.columns import Array, Columns
from diagnose.source.nvtx import OF_HOST, add_host
from diagnose.source.sqlite import UNKNOWN, Database, text_of
from diagnose.trace.enums import SpanKind
from diagnose.trace.nsys_files import TABLE as NVTX

KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME, SYNC, EVENT, OVERHEAD = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "SYNCHRONIZATION", "CUDA_EVENT", "OVERHEAD")
)
OSRT, SCHED = "OSRT_API", "SCHED_EVENTS"
_PLACED, _CALLED = "start end deviceId streamId correlationId", "start end globalTid correlationId nameId"
KNOWN = {
    KERNEL: (_PLACED, "gridX blockX"),
    MEMCPY: (f"{_PLACED} bytes copyKind", "srcKind dstKind"),
    MEMSET: (f"{_PLACED} bytes value", "value"),
    GRAPH: (f"{_PLACED} graphId", "graphExecId"),
    SYNC: (f"{_PLACED} eventId", "syncType"),
    EVENT: ("timestamp deviceId streamId correlationId eventId", "eventId"),
    OVERHEAD: (_CALLED, "overheadType"),
    RUNTIME: (_CALLED, "returnValue callchainId"),
    NVTX: ("start end eventType globalTid", "domainId textId"),
    OSRT: ("start end globalTid nameId", "nestingLevel"),
    SCHED: ("start globalTid isSchedIn", "isSchedIn"),
    "StringIds": ("id value", ""),
}
"""By the name of a table what it must have, and what tells it from others."""

OF_DEVICE = '"globalPid" = ?'
_TIMES, _PLACE = ("start", "end"), ("deviceId", "streamId", "correlationId")
_VERSION = re.compile(r"_v\d{4,5}\Z")
_OPERATIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
"""By ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, with the words that Kineto uses for the same."""

_NO_STREAM = 4_294_967_295
_SYNC_CALLS = (
    ("StreamWaitEvent", "Stream Wait Event"),
    ("EventSynchronize", "Event Sync"),
    ("StreamSynchronize", "Stream Sync"),
    ("DeviceSynchronize", "Context Sync"),
    ("CtxSynchronize", "Context Sync"),
)
"""What a synchronisation is, by the call: the files' own syncType means something else before schema 3.25."""


def of_process(db: Database, table: str, columns: tuple[str, ...], process: int) -> dict[str, Array]:
    """Columns of the rows of one process; of all rows if `process` is UNKNOWN or the table does not name processes."""
    for name, where in (("globalPid", OF_DEVICE), ("globalTid", OF_HOST)):
        if process != UNKNOWN and db.has(table, name):
            return db.columns(table, columns, where, process)
    return db.columns(table, columns)


def add_work(db: Database, columns: Columns, process: int) -> None:
    """Append the kernels, CUDA graphs (each run as one kernel), copies and memsets of a process."""
    shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    more = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "graphId", "graphNodeId")
    found = of_process(db, KERNEL, (*_TIMES, *_PLACE, "demangledName", "shortName", *shape, *more), process)
    name = np.where(found["demangledName"] >= 0, found["demangledName"], found["shortName"])
    first = _add(columns, SpanKind.KERNEL, found, named(db, columns, name))
    columns.add_side(SpanKind.KERNEL, first, _kernel_side(found))
    found = of_process(db, GRAPH, (*_TIMES, *_PLACE, "graphId"), process)
    labels = columns.names.codes((f"CUDA graph {one}" for one in found["graphId"].tolist()), len(found["graphId"]))
    first = _add(columns, SpanKind.KERNEL, found, labels)
    columns.add_side(SpanKind.KERNEL, first, _kernel_side(found))
    found = of_process(db, MEMCPY, (*_TIMES, *_PLACE, "bytes", "copyKind", "srcKind", "dstKind"), process)
    kinds = zip(*(found[one].tolist() for one in ("copyKind", "srcKind", "dstKind")), strict=True)
    first = _add(columns, SpanKind.MEMCPY, found, columns.names.codes(map(_copy, kinds), len(found["start"])))
    columns.add_side(SpanKind.MEMCPY, first, {"bytes": found["bytes"]})
    found = of_process(db, MEMSET, (*_TIMES, *_PLACE), process)
    count = len(found["start"])
    _add(columns, SpanKind.MEMSET, found, columns.names.codes(["Memset (Device)"] * count, count))


def _kernel_side(found: dict[str, Array]) -> dict[str, Array]:
    """Columns of the kernels' own table; what an export lacks is UNKNOWN, or 0 for sizes and graphs."""
    count = len(found["start"])
    unknown = np.full(count, UNKNOWN, dtype=np.int64)
    shared = np.stack([found.get(name, unknown) for name in ("staticSharedMemory", "dynamicSharedMemory")])
    graph = np.maximum(found.get("graphId", unknown), found.get("graphNodeId", unknown) > 0)
    side = {
        f"{part}_{axis}": np.maximum(found.get(f"{part}{axis.upper()}", unknown), 0)
        for part in ("grid", "block")
        for axis in "xyz"
    }
    return {
        **side,
        "registers": found.get("registersPerThread", unknown),
        "shared_bytes": np.where((shared >= 0).all(axis=0), shared.sum(axis=0), UNKNOWN),
        "occupancy_percent": np.full(count, np.nan),
        "graph_id": np.maximum(graph, 0),
    }


def _copy(kinds: tuple[int, int, int]) -> str:
    """The name of a copy, as Kineto writes it, by its (copyKind, srcKind, dstKind)."""
    operation, source, target = kinds
    between = f"{_MEMORY.get(source, 'Unknown')} -> {_MEMORY.get(target, 'Unknown')}"
    return f"Memcpy {_OPERATIONS.get(operation, 'Unknown')} ({between})"


def _add(columns: Columns, kind: SpanKind, found: dict[str, Array], names: Array) -> int:
    """Append spans of one kind on device streams, by the columns of a table; returns the first's row."""
    stream = np.where(found["streamId"] == _NO_STREAM, 0, found["streamId"])
    places, place = np.unique(np.stack((found["deviceId"], stream)), axis=1, return_inverse=True)
    tracks = columns.device_tracks.codes(((*one, *one) for one in places.T.tolist()), places.shape[1])
    times = {"ts_ns": found["start"], "dur_us": (found["end"] - found["start"]) / 1000}
    return columns.add_spans(kind, names, track=tracks[place.reshape(-1)], correlation=found["correlationId"], **times)


def named(db: Database, columns: Columns, ids: Array) -> Array:
    """The code in `columns.names` of each id of StringIds; unknown ids are ""."""
    texts = db.texts("StringIds", ids)
    distinct, position = np.unique(ids, return_inverse=True)
    codes = columns.names.codes((texts.get(one, "") for one in distinct.tolist()), len(distinct))
    found: Array = codes[position.reshape(-1)]
    return found


def add_calls(db: Database, columns: Columns, process: int) -> None:
    """Append runtime and driver calls, synchronisations and the recorder's overhead; set thread and process names."""
    found = of_process(db, RUNTIME, (*_TIMES, "globalTid", "correlationId", "nameId", "eventClass"), process)
    texts = {one: _VERSION.sub("", text) for one, text in db.texts("StringIds", found["nameId"]).items()}
    names = [texts.get(one, "") for one in found["nameId"].tolist()]
    driver = np.where(
        found["eventClass"] >= 0, found["eventClass"] == 1, [name[:2] == "cu" and name[2:3].isupper() for name in names]
    )
    codes = columns.names.codes(names, len(names))
    for kind, of_kind in ((SpanKind.RUNTIME, ~driver.astype(bool)), (SpanKind.DRIVER, driver.astype(bool))):
        if of_kind.any():
            add_host(columns, kind, codes[of_kind], {name: values[of_kind] for name, values in found.items()})
    _syncs(db, columns, process, dict(zip(found["correlationId"].tolist(), names, strict=True)))
    spent = of_process(db, OVERHEAD, (*_TIMES, "globalTid", "correlationId", "nameId"), process)
    add_host(columns, SpanKind.OVERHEAD, named(db, columns, spent["nameId"]), spent)
    _read_names(db, columns, process)


def _syncs(db: Database, columns: Columns, process: int, call: dict[int, str]) -> None:
    """Add synchronisations, each with its event's last record before it: its cause. `call`: names by correlation."""
    found = of_process(db, SYNC, (*_TIMES, *_PLACE, "eventId"), process)
    calls = [call.get(one, "") for one in found["correlationId"].tolist()]
    labels, count = [next((kind for part, kind in _SYNC_CALLS if part in one), "") for one in calls], len(calls)
    first = _add(columns, SpanKind.SYNC, found, columns.names.codes(labels, count))
    records = of_process(db, EVENT, ("timestamp", "eventId", "streamId", "correlationId"), process)
    at = _recorded_before(found["start"], found["eventId"], records)
    stream = np.where(found["streamId"] == _NO_STREAM, UNKNOWN, found["streamId"])
    columns.add_side(
        SpanKind.SYNC,
        first,
        {
            "sync_kind": columns.sync_kinds.codes(labels, count),
            "stream": stream,
            "wait_on_stream": np.append(records["streamId"], UNKNOWN)[at],
            "wait_on_correlation": np.append(records["correlationId"], UNKNOWN)[at],
        },
    )


def _recorded_before(start: Array, event: Array, records: dict[str, Array]) -> Array:
    """For each synchronisation the row in `records` of its event's last record before it; -1 if none."""
    order = np.lexsort((records["timestamp"], records["eventId"]))
    ids, times = records["eventId"][order], records["timestamp"][order]
    # Numbers in order stand for ids and times, which may be any.
    low, moments = np.unique(np.concatenate((ids, event))), np.unique(np.concatenate((times, start)))
    recorded = np.searchsorted(low, ids) * len(moments) + np.searchsorted(moments, times)
    asked = np.searchsorted(low, event) * len(moments) + np.searchsorted(moments, start)
    at = np.searchsorted(recorded, asked, "right") - 1
    hit = (at >= 0) & (event != _NO_STREAM) & (event >= 0)
    hit[hit] = ids[at[hit]] == event[hit]
    return np.where(hit, np.append(order, UNKNOWN)[at], UNKNOWN)


def _read_names(db: Database, columns: Columns, process: int) -> None:
    """Set the names of the threads and of the process, where the export has them."""
    found = of_process(db, "ThreadNames", ("globalTid", "nameId"), process)
    texts = db.texts("StringIds", found["nameId"])
    for thread, name in zip(found["globalTid"].tolist(), found["nameId"].tolist(), strict=True):
        pid, tid = nvtx.thread(thread)
        columns.thread_names[str(pid), str(tid)] = texts.get(name, "")
    if db.has("PROCESSES", "globalPid", "name"):
        of_it = db.rows("PROCESSES", ['CAST("name" AS TEXT)'], OF_DEVICE, process)
        columns.process_name = next((text_of(name) for (name,) in of_it), "")


OFF_CORE = "off the processor"  # Times in which a thread was on no core; why, only the call around it can tell.
LEAST_NS = 10_000  # Shorter is no reason why a device waits: queued work takes as long to start.


def add_system(db: Database, columns: Columns, process: int) -> None:
    """Append system calls and times off the processor of LEAST_NS or more that begin while other spans are recorded.
    Only of threads that call CUDA, else of those with ranges: what helper threads wait for holds up nobody."""
    threads = _threads(db, process)
    if not threads or process == UNKNOWN or not columns.rows:
        return
    first = min(int(chunk.min()) for chunk in columns.spans["ts_ns"] if len(chunk))
    ends = zip(columns.spans["ts_ns"], columns.spans["dur_us"], strict=True)
    last = min(max(int((start + np.maximum(dur, 0) * 1000).max()) for start, dur in ends if len(start)), 1 << 62)
    listed = f'"globalTid" IN ({", ".join(map(str, threads))})'
    calls = db.columns(OSRT, ("start", "end", "globalTid", "nameId"), listed) if db.has(OSRT, "globalTid") else {}
    if calls:
        _add_within(columns, calls, named(db, columns, calls["nameId"]), first, last)
    if db.has(SCHED, "start", "globalTid", "isSchedIn"):
        off = _off_core(db.columns(SCHED, ("start", "globalTid", "isSchedIn"), listed))
        _add_within(columns, off, np.full(len(off["start"]), columns.names[OFF_CORE], dtype=np.int32), first, last)


def _threads(db: Database, process: int) -> list[int]:
    """The globalTid of the threads of a process that call CUDA; without any, of those with NVTX ranges."""
    tables = (table for table in (RUNTIME, NVTX) if db.has(table, "globalTid"))
    found = (db.distinct(table, ['CAST("globalTid" AS INTEGER)'], OF_HOST, process) for table in tables)
    return [thread for (thread,) in next(filter(None, found), [])]


def _off_core(switches: dict[str, Array]) -> dict[str, Array]:
    """Times in which threads were not scheduled: from a switch out to the next switch of the thread, if that is in."""
    order = np.lexsort((switches["start"], switches["globalTid"]))
    start, thread, is_in = (switches[name][order] for name in ("start", "globalTid", "isSchedIn"))
    switched_out = np.flatnonzero((is_in[:-1] == 0) & (is_in[1:] == 1) & (thread[:-1] == thread[1:]))
    return {"start": start[switched_out], "end": start[switched_out + 1], "globalTid": thread[switched_out]}


def _add_within(columns: Columns, found: dict[str, Array], names: Array, first: int, last: int) -> None:
    """Add spans that begin at `first` or later and last LEAST_NS or longer when cut off at `last`."""
    found = {**found, "end": np.minimum(found["end"], last)}
    kept = (found["end"] - found["start"] >= LEAST_NS) & (found["start"] >= first)
    add_host(columns, SpanKind.SYSTEM, names[kept], {name: values[kept] for name, values in found.items()})
