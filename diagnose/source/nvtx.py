"""NVTX ranges as PyTorch and its users write them: ops with a number and shapes, and annotations."""

from __future__ import annotations

import re

import numpy as np

from diagnose.source.columns import Columns
from diagnose.source.sqlite import UNKNOWN, Database
from diagnose.trace.enums import SpanKind

TABLE = "NVTX_EVENTS"
RANGES = "59, 60"
"""eventType of push/pop ranges and of ranges that may end on another thread (ENUM_NSYS_EVENT_TYPE)."""

_OP = re.compile(r"(?!FSDP::)(\w+::|.*Backward\d+\Z)")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|.*Backward\d+\Z")
_TEXT = "CAST({} AS TEXT)"
_SEQ, _ID, _SIZES, _INPUTS = ", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = "
"""What torch.autograd.profiler.emit_nvtx appends to a name, in this order (torch/csrc/profiler/util.cpp)."""


def thread(global_tid: int) -> tuple[int, int]:
    """(process id, thread id) of a globalTid."""
    return (global_tid >> 24) & 0xFFFFFF, global_tid & 0xFFFFFF


def read(db: Database, columns: Columns, process: int, of_process: str) -> None:
    """Append the closed ranges of a process. Those that still ran, or began before the recording, are not there."""
    if not db.has(TABLE, "start", "end", "eventType", "globalTid"):
        return
    text = _text(db)
    where = f'"eventType" IN ({RANGES}) AND "end" >= "start" AND {text} IS NOT NULL'
    values: tuple[int, ...] = ()
    if process != UNKNOWN:
        where, values = f"{where} AND {of_process}", (process,)
    numbers = [f'CAST("{name}" AS INTEGER)' for name in ("start", "end", "globalTid")]
    rows = db.rows(TABLE, [*numbers, *_parsed(text)], where, *values)
    for kind, mine in ((SpanKind.OP, True), (SpanKind.ANNOTATION, False)):
        _append(columns, kind, [row for row in rows if (_OP.match(str(row[3])) is not None) is mine])


def _text(db: Database) -> str:
    """The text of a range: its own, else a registered one."""
    parts = [_TEXT.format('"text"')] if db.has(TABLE, "text") else []
    if db.has(TABLE, "textId") and db.has("StringIds", "id", "value"):
        parts.append('(SELECT CAST(value AS TEXT) FROM "StringIds" AS s WHERE s.id = "textId")')
    return f"COALESCE({', '.join([*parts, 'NULL'])})"


def _parsed(text: str) -> list[str]:
    """Expressions for name, sequence number, id and shapes. CAST reads a number up to the first other character."""

    def at(mark: str) -> str:
        return f"instr({text}, '{mark}')"

    def number(mark: str) -> str:
        return f"CASE WHEN {at(mark)} THEN CAST(substr({text}, {at(mark)} + {len(mark)}) AS INTEGER) ELSE -1 END"

    first = ", ".join(f"NULLIF({at(mark)}, 0)" for mark in (_SEQ, _ID, _SIZES))
    name = f"substr({text}, 1, COALESCE({first}, length({text}) + 1) - 1)"
    end = f"COALESCE(NULLIF({at(_INPUTS)}, 0), length({text}) + 1)"
    begin = f"({at(_SIZES)} + {len(_SIZES)})"
    sizes = f"CASE WHEN {at(_SIZES)} THEN substr({text}, {begin}, {end} - {begin}) ELSE '' END"
    return [name, number(_SEQ), number(_ID), sizes]


def _append(columns: Columns, kind: SpanKind, rows: list[tuple[object, ...]]) -> None:
    if not rows:
        return
    start, end, owner, names, sequence, ident, sizes = zip(*rows, strict=True)
    begin = np.array(start, dtype=np.int64)
    count = len(rows)
    first = columns.add_spans(
        kind,
        name=columns.names.codes(names, count),
        track=columns.host_tracks.codes(map(thread, owner), count),
        ts_ns=begin,
        dur_us=(np.array(end, dtype=np.int64) - begin) / 1000,
        correlation=np.full(count, UNKNOWN, dtype=np.int64),
        external_id=np.array(ident, dtype=np.int64),
    )
    if kind is not SpanKind.OP:
        return
    empty = np.zeros(count, dtype=np.int32)
    columns.add_side(
        kind,
        first,
        {
            "shapes": columns.texts["shapes"].codes((str(one).encode() for one in sizes), count),
            "dtypes": empty,
            "sequence": np.array(sequence, dtype=np.int64),
            # Which thread the forward op ran on is not recorded; that an op runs backward is what counts.
            "forward_thread": np.array([1 if _BACKWARD.match(str(one)) else 0 for one in names], dtype=np.int64),
            "stack": empty,
            "finished": np.ones(count, dtype=bool),
        },
    )
