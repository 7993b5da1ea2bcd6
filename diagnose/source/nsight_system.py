"""What Nsight Systems records beside events: the system's threads, Python's stacks; and its own reports, exported.

A thread of the recorder takes them, of all threads of Python in turn. Whose a stack is only its outermost frame tells,
so that just those of the main thread are used: they begin in a module, others in a function of `threading`.
"""

import atexit
import html
import posixpath
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePath

import numpy as np

from diagnose.source import nvtx
from diagnose.source.base import InputError
from diagnose.source.columns import Array, Columns, Vocabulary, printable
from diagnose.source.nsight_events import OF_HOST, OSRT, RUNTIME, SCHED, named
from diagnose.source.sqlite import UNKNOWN, Database, text_of
from diagnose.storage.remote import Place, Remote
from diagnose.trace import frames, nsys_files
from diagnose.trace.enums import SpanKind
from diagnose.trace.nsys_files import BLOB, DOMAIN, MARK, SAMPLES, TABLE

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
    last = min(max(int((start + np.maximum(dur, 0) * 1000).max()) for start, dur in ends if len(start)), 1 << 62)
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


LAST_LINE = 999_999_999  # No file has more; a larger number is none of a line.

_MODULES = ("<module>", "_run_module_as_main")
"""Functions that the main thread's stack begins with: of a script, and of a module that is run by its name."""

_TID_BITS = 0xFFFFFF

_Frame = tuple[int, int, int]


def add_samples(db: Database, columns: Columns, process: int, of_process: str) -> None:
    """Keep, of each sample of the main thread, the innermost frame of the user's own code."""
    if not db.has(TABLE, "start", "eventType", "globalTid", "domainId", BLOB):
        return
    mine, values = (f" AND {of_process}", (process,)) if process != UNKNOWN else ("", ())
    domains = _domains(db, mine, values)
    if not domains:
        return
    where = f'"eventType" = {MARK} AND "domainId" IN ({", ".join(map(str, domains))}) AND "{BLOB}" IS NOT NULL{mine}'
    start, thread = db.ints(TABLE, ['"start"', '"globalTid"'], where, *values)
    stacks = Vocabulary()  # There are few, and many samples.
    blobs = db.rows(TABLE, [f'CAST("{BLOB}" AS BLOB)'], where, *values)
    stack = np.fromiter((stacks[tuple(nsys_files.frames(blob))] for (blob,) in blobs), np.int64, len(start))
    texts = db.texts("StringIds", np.array([one for frames in stacks for frame in frames for one in frame[:2]]))

    @lru_cache(None)
    def own(frame: _Frame) -> bool:
        return frame[2] <= LAST_LINE and frames.is_user_frame(_name(texts, frame))

    inner = Vocabulary()
    found = [
        next((inner[frame] for frame in frames if own(frame)), UNKNOWN) if _is_main(texts, frames) else UNKNOWN
        for frames in stacks
    ]
    frame = np.array(found, dtype=np.int64)[stack]
    known = frame >= 0
    if known.any():
        main = thread[known] & ~_TID_BITS | thread[known] >> 24 & _TID_BITS  # Its id is that of the process.
        columns.samples = {"ts_ns": start[known], "track": nvtx.tracks(columns, main), "frame": frame[known]}
        columns.frames = _short([_name(texts, one) for one in inner])


def _domains(db: Database, mine: str, values: tuple[int, ...]) -> list[int]:
    rows = db.rows(TABLE, ['CAST("domainId" AS INTEGER)', _text(db)], f'"eventType" = {DOMAIN}{mine}', *values)
    return sorted({number for number, text in rows if isinstance(number, int) and text_of(text) == SAMPLES})


def _text(db: Database) -> str:
    return 'CAST("text" AS TEXT)' if db.has(TABLE, "text") else "NULL"


def _is_main(texts: dict[int, str], frames: tuple[_Frame, ...]) -> bool:
    return bool(frames) and html.unescape(texts.get(frames[-1][0], "")) in _MODULES


def _name(texts: dict[int, str], frame: _Frame) -> str:
    """A frame as torch.profiler writes it. Some versions escape names as for HTML."""
    function, file, line = frame
    return html.unescape(f"{texts.get(file, '')}({line}): {texts.get(function, '')}")


def _short(names: Sequence[str]) -> list[str]:
    """The names without the folder that all files are in, as torch.profiler cuts off where it imports from."""
    folders = {posixpath.dirname(name.rpartition("(")[0]) for name in names}
    shared = posixpath.commonpath(folders) if folders and all(folder.startswith("/") for folder in folders) else ""
    return [printable(name[len(shared) + 1 :] if len(shared) > 1 else name) for name in names]


SUFFIXES = (".nsys-rep", ".qdrep")


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
