"""Exporting reports of Nsight Systems, with the samples of Python in them: what recording and reading share.

A sample is an NVTX mark in a domain of its own; the call stack is its payload, a blob of NVTX_EVENTS.binaryData. nsys
exports blobs if it is asked to (`--include-blobs`), older ones (2023.4 and 2024.2 do not know the option) only as JSON,
from where they are brought into the SQLite file, in the layout of the newer ones.
"""

import base64
import binascii
import json
import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

TABLE, BLOB = "NVTX_EVENTS", "binaryData"
SAMPLES = "Python Backtrace"  # Name of the domain; marked by an event of type
DOMAIN, MARK = 75, 34  # `eventType` of what names a domain, and of a mark (ENUM_NSYS_EVENT_TYPE).

HELP_S = 20
EXPORT_S = 1800  # Exports of reports of some GB take minutes.

MOST_JSON = 64 << 20  # Of a report whose payloads are looked for in JSON, some seven times as large (2024.2).
PAYLOAD_HEAD = struct.Struct("<4Q")  # Of a blob: domain, schema, bytes, and one more number (see `source.nvtx`).


def export(nsys: str, report: Path, target: Path) -> str:
    """Export a report to SQLite, with blobs. Returns what went wrong, as a clause; "" if nothing did."""
    try:
        known = subprocess.run([nsys, "export", "--help"], capture_output=True, text=True, timeout=HELP_S).stdout
        blobs = ["--include-blobs=true"] if "--include-blobs" in known else []
        failure = _export(nsys, "sqlite", blobs, report, target)
        if not failure and not blobs and report.stat().st_size <= MOST_JSON:
            _add_samples(nsys, report, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return failure


def _export(nsys: str, kind: str, options: list[str], report: Path, target: Path) -> str:
    """Exports the report with nsys; the error text, empty if the target is there."""
    line = [nsys, "export", f"--type={kind}", *options, f"--output={target}", str(report.absolute())]
    done = subprocess.run(line, capture_output=True, text=True, timeout=EXPORT_S, stdin=subprocess.DEVNULL)
    if done.returncode or not target.is_file():
        return " ".join((done.stderr or done.stdout).split())[-200:] or f"nsys ended with {done.returncode}"
    return ""


def _add_samples(nsys: str, report: Path, target: Path) -> None:
    """Bring payloads of samples from an export as JSON into one as SQLite.

    Without them only lines are not known: whatever goes wrong, a full disk too, the export stays usable.
    """
    with suppress(sqlite3.Error, OSError, subprocess.TimeoutExpired), closing(sqlite3.connect(target)) as db:
        marks = dict(_marks(db))
        if not marks:
            return
        beside = target.with_suffix(".payloads.json")
        try:
            if _export(nsys, "json", [], report, beside):
                return
            db.execute(f"ALTER TABLE {TABLE} ADD COLUMN {BLOB} BLOB")
            found = ((blob, marks[key]) for key, blob in _payloads(beside) if key in marks)
            db.executemany(f"UPDATE {TABLE} SET {BLOB} = ? WHERE rowid = ?", found)
            db.commit()
        finally:
            beside.unlink(missing_ok=True)


def _marks(db: sqlite3.Connection) -> Iterator[tuple[tuple[int, int], int]]:
    """((start ns, thread), row id) of each sample's mark."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (TABLE,)).fetchone():
        domain = f"SELECT domainId FROM {TABLE} WHERE eventType = {DOMAIN} AND text = ?"
        marks = f"SELECT start, globalTid, rowid FROM {TABLE} WHERE eventType = {MARK} AND domainId IN ({domain})"
        for start, thread, row in db.execute(marks, (SAMPLES,)):
            yield (start, thread), row


def _payloads(path: Path) -> Iterator[tuple[tuple[int, int], bytes]]:
    """(Time, thread) and blob of each event that has a payload: one event a line."""
    with path.open("rb") as lines:
        for line in lines:
            if b'"BinaryData"' not in line:
                continue
            with suppress(ValueError, KeyError, TypeError, IndexError, struct.error, binascii.Error):
                event = json.loads(line)["NvtxEvent"]
                payload = event["Payload"]["BinaryData"][0]
                values = base64.b64decode(payload["Data"])
                numbers = int(event["DomainId"]), int(payload["SchemaId"]), len(values)
                head = PAYLOAD_HEAD.pack(*numbers, PAYLOAD_HEAD.size + len(values))
                yield (int(event["Timestamp"]), int(event["GlobalTid"])), head + values
