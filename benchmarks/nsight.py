"""Speed of loading an export of Nsight Systems, beside a plain SELECT of what is needed: `python -m benchmarks.nsight`.

The export is made up: one process, in which each op has a range, some launch a kernel, few copy or wait. Both times are
the fastest of several, taken in turn in this process, with the file in the page cache.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from diagnose.source import ranks

RESULTS = Path(__file__).with_name("nsight.json")
TARGET = 3

PROCESS = 1 << 48 | 100 << 24
THREAD = PROCESS | 100
OPS_PER_STEP = 5_000
OP_NS = 20_000  # From one op to the next.

WORK = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
CALL = ("start", "end", "globalTid", "correlationId", "nameId")
NEEDED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *WORK,
        *("demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
        *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*WORK, "bytes", "copyKind", "srcKind", "dstKind"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (*CALL, "eventClass"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (*WORK, "eventId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "globalTid", "text", "textId"),
    "OSRT_API": ("start", "end", "globalTid", "nameId"),
    "SCHED_EVENTS": ("start", "globalTid", "isSchedIn"),
    "StringIds": ("id", "value"),
}
"""Columns that are read."""

NAMES = (
    *("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020", "poll"),
    *(f"void at::native::vectorized_elementwise_kernel<4, Functor{k}>(int)" for k in range(96)),
)


def rows_of(op: int) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Rows (table, values) of the op of this number."""
    at = op * OP_NS
    number = op % OPS_PER_STEP
    text = f"aten::op{number % 60}, seq = {op}, op_id = {op}, sizes = [[{8 * (number % 50)}, 64], [64, 16]]"
    yield "NVTX_EVENTS", (at, at + 15_000, 59, THREAD, text, None)
    if not number:
        yield "NVTX_EVENTS", (at, at + OPS_PER_STEP * OP_NS - 1, 59, THREAD, f"ProfilerStep#{op // OPS_PER_STEP}", None)
    work = (at + 9_000, at + 26_000, 0, 7, op + 1, PROCESS)
    call = (at + 5_000, at + 8_000, THREAD, op + 1)
    if number % 3 == 0:
        yield "CUPTI_ACTIVITY_KIND_RUNTIME", (*call, 1, 0)
        yield "CUPTI_ACTIVITY_KIND_KERNEL", (*work, 5 + number % 96, 5, 512, 1, 1, 256, 1, 1, 32, 0, 0, None)
    elif number % 20 == 1:
        yield "CUPTI_ACTIVITY_KIND_RUNTIME", (*call, 2, 0)
        yield "CUPTI_ACTIVITY_KIND_MEMCPY", (*work, 65_536, 1, 1, 2)
    elif number % 100 == 2:
        yield "CUPTI_ACTIVITY_KIND_RUNTIME", (*call, 3, 0)
        yield "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (*call[:2], 0, 7, op + 1, PROCESS, 4_294_967_295)
        yield "OSRT_API", (at + 5_100, at + 7_900, THREAD, 4)
        yield "SCHED_EVENTS", (at + 5_200, THREAD, 0)
        yield "SCHED_EVENTS", (at + 7_800, THREAD, 1)


def listed(columns: Iterable[str]) -> str:
    """Columns as SQL names them; "end" is a word of its own."""
    return ", ".join(f'"{column}"' for column in columns)


def make(path: Path, megabytes: int) -> None:
    """An export of at least this size, in whole steps."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        for table, columns in NEEDED.items():
            db.execute(f"CREATE TABLE {table} ({listed(columns)})")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES, start=1))
        step = 0
        while path.stat().st_size < megabytes * 1e6:
            found: dict[str, list[tuple[object, ...]]] = {}
            for op in range(step * OPS_PER_STEP, (step + 1) * OPS_PER_STEP):
                for table, values in rows_of(op):
                    found.setdefault(table, []).append(values)
            for table, rows in found.items():
                db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
            db.commit()
            step += 1


def select(path: Path) -> int:
    """Fetch all that is needed, as plain rows; returns how many."""
    count = 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        for table, columns in NEEDED.items():
            count += len(db.execute(f"SELECT {listed(columns)} FROM {table}").fetchall())
    return count


def read(path: Path) -> int:
    """Load the rank; returns how many spans it has."""
    (file,) = ranks.find([path])
    return len(ranks.read(path, file.part).spans)


def seconds(act: Callable[[Path], int], path: Path) -> float:
    """How long that takes."""
    started = time.perf_counter()
    act(path)
    return time.perf_counter() - started


def sentence() -> str:
    """What stands in benchmarks/nsight.json, in words."""
    told = json.loads(RESULTS.read_text(encoding="utf-8"))
    plain, ours = told["select_seconds"], told["load_seconds"]
    return (
        f"An export of Nsight Systems of {told['megabytes']:,.0f} MB, {told['rows']:,} rows, loads in {ours:.1f} s."
        f" A plain `SELECT` of the same columns takes {plain:.1f} s ({told['ratio']:.1f} x; target: at most {TARGET})."
    )


def main() -> None:
    """Measure, print what was found, keep it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="at least the size of the export (500)")
    parser.add_argument("--repeat", type=int, default=3, help="of each (3)")
    parser.add_argument("--write", action="store_true", help="into benchmarks/nsight.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        make(path, options.megabytes)
        rows, megabytes = select(path), path.stat().st_size / 1e6
        pairs = [(seconds(select, path), seconds(read, path)) for _ in range(options.repeat)]
    plain, ours = (min(times) for times in zip(*pairs, strict=True))
    told = {
        "megabytes": round(megabytes),
        "rows": rows,
        "load_seconds": round(ours, 1),
        "select_seconds": round(plain, 1),
        "ratio": round(ours / plain, 1),
    }
    print(json.dumps(told))
    if options.write:
        RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
