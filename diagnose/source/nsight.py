"""Nsight Systems' SQLite exports, of 2021 to 2026, as ranks: one for each process that used a GPU.

Tables exist only if they had rows, and columns come and go: the file is asked. Tables and columns: the user guides of
2022.4 and 2023.4, and files of 2022.2 to 2026.2.
"""

import atexit
import shutil
import tempfile
from pathlib import Path, PurePath

import numpy as np

from diagnose.source import nvtx
from diagnose.source.assemble import assemble
from diagnose.source.base import Damage, Header, InputError
from diagnose.source.columns import Columns, printable
from diagnose.source.nsight_events import GRAPH, KERNEL, KNOWN, MEMCPY, MEMSET, RUNTIME, add_calls, add_system, add_work
from diagnose.source.sqlite import UNKNOWN, Database, text_of
from diagnose.storage.remote import Place, Remote
from diagnose.trace import nsys_files
from diagnose.trace.model import Device, Rank

_ON_DEVICE, _ON_HOST = (KERNEL, MEMCPY, MEMSET, GRAPH), (RUNTIME, nsys_files.TABLE)
_AGAIN = "Export the report again: nsys export --type sqlite REPORT.nsys-rep"
DAY_NS, LATEST_NS = 86_400_000_000_000, 1 << 62  # A recording lasts no day, and none was made after 2116.
MOST_TOLD, LONGEST_TOLD = 5, 300  # Sentences of the recorder's own that are passed on, and characters of each.


def claims(head: bytes) -> bool:
    """Whether a file that begins with `head` is an SQLite database; what is in it shows only on reading it."""
    return head.startswith(b"SQLite format 3\0")


def parts(path: Place) -> tuple[int, ...]:
    """Ids of the processes that used a GPU, else of all with host events, by device and id. Raises InputError."""
    with Database(path, KNOWN) as db:
        return _processes(db)


def read(path: Place, part: int | None = None) -> Rank:
    """The rank of process `part` (None: the first of `parts`). Raises InputError if there is nothing of a GPU job."""
    with Database(path, KNOWN) as db:
        processes = _processes(db)
        process = part if part is not None else processes[0]
        columns, damage = Columns(), Damage()
        for add in (add_work, add_calls, nvtx.read, add_system, nvtx.add_samples):
            add(db, columns, process)
        columns.events = columns.rows
        if not columns.rows:
            raise InputError(f"{path} has no GPU work, CUDA calls or NVTX ranges. Record with --trace=cuda,nvtx.")
        damage.told, damage.unread_tables = _recorder_messages(db), _unread(db)
        header = _header(db, _from_zero(columns), processes, process)
    return assemble(path, "nsight", header, columns, damage)


def _unread(db: Database) -> list[str]:
    """Names of unknown tables that seem to hold events: named like a known one, or with times and a stream or call."""
    return sorted(
        one
        for one in db.others
        if one.startswith(tuple(KNOWN))
        or any(db.has(one, "start", "end", key) for key in ("streamId", "correlationId"))
    )


def _check(db: Database) -> None:
    """Raise InputError if nothing can be read, or only copies and host events can and a table with streams cannot."""
    unread, readable = _unread(db), any(map(db.filled, (KERNEL, GRAPH)))
    readable |= any(map(db.filled, (MEMCPY, *_ON_HOST))) and not any(db.has(one, "streamId") for one in unread)
    if not readable:
        unknown = f" Tables that are not known: {printable(', '.join(unread))}." if unread else ""
        what = f"{db.path} is an SQLite database without GPU work, CUDA calls or NVTX ranges that can be read."
        raise InputError(f"{what}{unknown} {_AGAIN}")


def _processes(db: Database) -> tuple[int, ...]:
    """Ids of the processes that used a GPU, by the lowest device of each; else of all with host events; else -1."""
    _check(db)
    device_of: dict[int, int] = {}
    for table in (one for one in _ON_DEVICE if db.has(one, "globalPid")):
        device = 'COALESCE(CAST("deviceId" AS INTEGER), 0)' if db.has(table, "deviceId") else "0"
        for process, number in db.distinct(table, ['CAST("globalPid" AS INTEGER)', device]):
            device_of[process] = min(number, device_of.get(process, number))
    if not device_of:
        for table in (one for one in _ON_HOST if db.has(one, "globalTid")):
            device_of |= {process: 0 for (process,) in db.distinct(table, ['CAST("globalTid" & ~16777215 AS INTEGER)'])}
    return tuple(sorted(device_of, key=lambda one: (device_of[one], one))) or (UNKNOWN,)


def _from_zero(columns: Columns) -> int:
    """Shift times so that none is before 0; returns by how many ns. Times of -1 stay: they stand for no time."""
    chunks = columns.spans["ts_ns"]
    # What lies further back was not measured: it would shift all else, and is left out as having no time.
    earliest = min((int(chunk[chunk > -DAY_NS].min(initial=0)) for chunk in chunks), default=0)
    if earliest >= UNKNOWN:
        return 0
    if columns.samples:
        columns.samples["ts_ns"] = columns.samples["ts_ns"] - earliest
    columns.spans["ts_ns"] = [np.where(chunk == UNKNOWN, UNKNOWN, chunk - earliest) for chunk in chunks]
    return -earliest


def _header(db: Database, before_ns: int, processes: tuple[int, ...], process: int) -> Header:
    """The header of one process's rank; ranks are the positions of `processes`. `before_ns`: shift of times to 0."""
    zero = db.columns("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
    zero = zero[(zero > 0) & (zero < LATEST_NS)]
    base_ns = max(int(zero[0]) - before_ns, 0) if len(zero) else 0
    several = len(processes) > 1 and process in processes
    rank, world = (processes.index(process), len(processes)) if several else (None, None)
    return Header(tuple(_devices(db)), rank, world, base_ns)


def _devices(db: Database) -> list[Device]:
    """The GPUs of the machine, by index; what is not recorded of one is 0 or "". Empty if none is listed."""
    if not db.has("TARGET_INFO_GPU", "id", "name"):
        return []
    numbers = (
        *("id", "cuDevice", "totalMemory", "smCount", "computeMajor", "computeMinor", "maxWarpsPerSm"),
        "threadsPerWarp",
    )
    found = db.columns("TARGET_INFO_GPU", numbers)
    named = db.rows("TARGET_INFO_GPU", ['CAST("id" AS INTEGER)', 'CAST("name" AS TEXT)'])
    names = {ident: text_of(name) for ident, name in named}
    made = []
    for row in zip(*(found[name].tolist() for name in numbers), strict=True):
        ident, ordinal, memory, sms, major, minor, warps, threads = (max(one, 0) for one in row)
        made.append(
            Device(
                index=ordinal if db.has("TARGET_INFO_GPU", "cuDevice") else ident,
                name=printable(names.get(ident, "")[:200]),
                memory_bytes=memory,
                multiprocessors=sms,
                compute_capability=(major, minor),
                max_threads_per_multiprocessor=warps * threads,
                warp_size=threads,
            )
        )
    return sorted(made, key=lambda one: one.index)


def _recorder_messages(db: Database) -> list[str]:
    """Warnings and errors of Nsight Systems itself, each once, at most MOST_TOLD."""
    if not db.has("DIAGNOSTIC_EVENT", "severity", "text"):
        return []
    rows = db.rows("DIAGNOSTIC_EVENT", ['CAST("text" AS TEXT)'], '"severity" >= 2')
    texts = dict.fromkeys(printable(" ".join(text_of(text).split()))[:LONGEST_TOLD] for (text,) in rows if text)
    return list(texts)[:MOST_TOLD]


REPORTS = (".nsys-rep", ".qdrep")  # How files end that have to be exported first.


def exported(report: Place) -> Path:
    """The SQLite export of a report, in a folder of ours until this process ends. Raises InputError with what to do."""
    by_hand = f"nsys export --type sqlite --output {PurePath(report.name).stem}.sqlite {report.name}"
    if isinstance(report, Remote):
        raise InputError(
            f"{report} needs conversion by Nsight Systems, which reads only local files."
            f" Download the report, or run on its machine: {by_hand}"
        )
    nsys = shutil.which("nsys")
    if nsys is None:
        raise InputError(
            f"{report} needs conversion by Nsight Systems, but this machine has no nsys."
            f" On a machine with nsys, run: {by_hand}"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix="diagnose-nsys-"))
    except OSError as error:
        raise InputError(f"No space to export {report}: {error}. Run it manually: {by_hand}") from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / f"{report.stem}.sqlite"
    if failure := nsys_files.export(nsys, report, target):
        raise InputError(
            f"nsys could not export {report}: {printable(failure)}. An old nsys cannot read newer reports."
            f" Run it manually: {by_hand}"
        )
    return target
