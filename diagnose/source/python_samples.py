"""Samples of Python's call stacks in Nsight Systems' exports: at which line of the user's code the main thread was.

A thread of the recorder takes them, of all threads of Python in turn. Whose a stack is only its outermost frame tells,
so that just those of the main thread are used: they begin in a module, others in a function of `threading`.
"""

from __future__ import annotations

import html
import posixpath
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from diagnose.source import nvtx
from diagnose.source.columns import Columns, Vocabulary, printable
from diagnose.source.sqlite import UNKNOWN, Database, text_of
from diagnose.trace import frames, nsys_files
from diagnose.trace.nsys_files import BLOB, DOMAIN, MARK, SAMPLES, TABLE

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
