"""What Nsight Systems would have exported of a synthetic trace: the same events in its tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diagnose.source import ranks
from diagnose.synthetic import notation
from diagnose.trace.model import Rank

PROCESS = 100
TABLES = {
    "StringIds": ("id", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName"),
        *("shortName", "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
        *("staticSharedMemory", "dynamicSharedMemory", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes", "copyKind"),
        *("srcKind", "dstKind"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "value", "bytes"),
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "syncType", "eventId"),
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": ("timestamp", "deviceId", "streamId", "correlationId", "globalPid", "eventId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphId"),
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "textId", "domainId", "binaryData"),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": ("domainId", "schemaId", "idx", "type", "name", "offset"),
    "TARGET_INFO_GPU": (
        *("id", "name", "totalMemory", "smCount", "cuDevice", "computeMajor", "computeMinor", "maxWarpsPerSm"),
        "threadsPerWarp",
    ),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
    "OSRT_API": ("start", "end", "globalTid", "nameId"),
    "SCHED_EVENTS": ("start", "cpu", "isSchedIn", "globalTid"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "ThreadNames": ("nameId", "priority", "globalTid"),
    "DIAGNOSTIC_EVENT": ("timestamp", "source", "severity", "text"),
}
_PROPERTIES = {"id": "id", "name": "name", "totalMemory": "totalGlobalMem", "smCount": "numSms", "cuDevice": "id"}
_PROPERTIES |= {"computeMajor": "computeMajor", "computeMinor": "computeMinor", "threadsPerWarp": "warpSize"}
_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2}


def pid(process: int = PROCESS) -> int:
    return (1 << 48) | (process << 24)


class Export:
    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self._strings: dict[str, int] = {}

    def add(self, table: str, **row: Any) -> Export:
        """A row; what a table lacks stays NULL."""
        self.tables.setdefault(table, []).append(row)
        return self

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def kernel(
        self, name: str, start: int, end: int, correlation: int = 0, process: int = PROCESS, **row: Any
    ) -> Export:
        known = {"start": start, "end": end, "correlationId": correlation, "globalPid": pid(process)}
        place = {"deviceId": 0, "streamId": 7, "demangledName": self.string(name)}
        return self.add("CUPTI_ACTIVITY_KIND_KERNEL", **{**known, **place, **row})

    def call(self, name: str, start: int, end: int, correlation: int = 0, process: int = PROCESS, **row: Any) -> Export:
        known = {"start": start, "end": end, "correlationId": correlation, "globalTid": pid(process) | process}
        return self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **{**known, "nameId": self.string(name), "eventClass": 0, **row})

    def sync(self, start: int, end: int, correlation: int, **row: Any) -> Export:
        place = {"deviceId": 0, "streamId": 7, "globalPid": pid(), "correlationId": correlation}
        return self.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=start, end=end, **{**place, **row})

    def event(self, at: int, event: int, stream: int, correlation: int) -> Export:
        place = {"deviceId": 0, "streamId": stream, "globalPid": pid(), "correlationId": correlation}
        return self.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", timestamp=at, eventId=event, **place)

    def system(self, name: str, start: int, end: int, thread: int | None = None) -> Export:
        number = self.string(name)
        return self.add("OSRT_API", start=start, end=end, globalTid=thread or pid() | PROCESS, nameId=number)

    def off_core(self, start: int, end: int, thread: int | None = None) -> Export:
        for at, on in ((start, 0), (end, 1)):
            self.add("SCHED_EVENTS", start=at, cpu=0, isSchedIn=on, globalTid=thread or pid() | PROCESS)
        return self

    def range(self, text: str | None, start: int, end: int | None, process: int = PROCESS, **row: Any) -> Export:
        known = {"start": start, "end": end, "text": text, "globalTid": pid(process) | process, "eventType": 59}
        return self.add("NVTX_EVENTS", **{**known, **row})

    def write(self, path: Path, columns: Mapping[str, Iterable[str]] | None = None) -> Path:
        """The file. Tables without rows are not in it, as in lazy exports; `columns` leaves some out."""
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as db:
            for table, rows in self.tables.items():
                names = [*(columns or {}).get(table, TABLES[table])]
                db.execute(f'CREATE TABLE "{table}" ({", ".join(map(repr, names))})')
                marks = ", ".join("?" * len(names))
                db.executemany(
                    f'INSERT INTO "{table}" VALUES ({marks})', [[row.get(name) for name in names] for row in rows]
                )
        db.close()
        return path


def read(made: Export, tmp_path: Path) -> Rank:
    return ranks.read(made.write(tmp_path / "report.sqlite"))


def synthetic(text: str) -> Export:
    """The export of what is drawn. Python frames have no place in it."""
    document = json.loads(notation.trace(text))
    made = Export()
    made.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=document["baseTimeNanoseconds"])
    for one in document["deviceProperties"]:
        warps = one["maxThreadsPerMultiprocessor"] // one["warpSize"]
        told = {column: one[name] for column, name in _PROPERTIES.items()}
        made.add("TARGET_INFO_GPU", **told, maxWarpsPerSm=warps)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            _add(made, event)
    return made


def _add(made: Export, event: dict[str, Any]) -> None:
    start, args, category = round(event["ts"] * 1000), event["args"], event["cat"]
    when = {"start": start, "end": start + round(event["dur"] * 1000)}
    thread = pid() | event["tid"] if isinstance(event["tid"], int) else pid()
    place = {"deviceId": args.get("device"), "streamId": args.get("stream"), "contextId": 1, "globalPid": pid()}
    ran = {**when, **place, "correlationId": args.get("correlation")}
    if category in ("cuda_runtime", "cuda_driver"):
        suffix = "_v7000" if category == "cuda_runtime" else ""
        called = {"nameId": made.string(event["name"] + suffix), "correlationId": args["correlation"]}
        driver = category == "cuda_driver"
        made.add("CUPTI_ACTIVITY_KIND_RUNTIME", **when, **called, eventClass=driver, globalTid=thread)
    elif category == "kernel":
        sizes = {f"{part}{axis}": args[part][k] for part in ("grid", "block") for k, axis in enumerate("XYZ")}
        names = {"demangledName": made.string(event["name"]), "shortName": made.string("kernel")}
        shared = {"staticSharedMemory": 0, "dynamicSharedMemory": args["shared memory"]}
        rest = {"registersPerThread": args["registers per thread"], "graphNodeId": args.get("graph id")}
        made.add("CUPTI_ACTIVITY_KIND_KERNEL", **ran, **sizes, **names, **shared, **rest)
    elif category == "gpu_memcpy":
        _, operation, memory = event["name"].split(" ", 2)
        source, target = memory.strip("()").split(" -> ")
        ends = {"copyKind": _KINDS[operation], "srcKind": _MEMORY[source], "dstKind": _MEMORY[target]}
        made.add("CUPTI_ACTIVITY_KIND_MEMCPY", **ran, **ends, bytes=args.get("bytes"))
    elif category == "gpu_memset":
        made.add("CUPTI_ACTIVITY_KIND_MEMSET", **ran, bytes=args.get("bytes"))
    elif category in ("cpu_op", "user_annotation"):
        extra = f", seq = {args['Sequence number']}" if "Sequence number" in args else ""
        extra += f", op_id = {args['External id']}" if category == "cpu_op" else ""
        extra += f", sizes = {json.dumps(args['Input Dims'])}" if "Input Dims" in args else ""
        made.add("NVTX_EVENTS", **when, eventType=59, text=event["name"] + extra, globalTid=thread, domainId=0)
