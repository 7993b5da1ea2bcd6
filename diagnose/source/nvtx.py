"""NVTX ranges as PyTorch and its users write them: ops with a number and shapes, and annotations."""

from __future__ import annotations

import re
from itertools import chain

import numpy as np

from diagnose.source.columns import Array, Columns
from diagnose.source.sqlite import UNKNOWN, Database
from diagnose.trace.enums import SpanKind

TABLE = "NVTX_EVENTS"
RANGES = "59, 60"
"""eventType of push/pop ranges and of ranges that may end on another thread (ENUM_NSYS_EVENT_TYPE)."""

CAPTURE = "diagnose.capture"
"""A range that only tells nsys when to record; `diagnose profile --tracer nsys` opens it."""

_OP = re.compile(r"(?!FSDP::)(\w+::|.*Backward\d+\Z)")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|.*Backward\d+\Z")
_SEQ, _ID, _SIZES, _INPUTS = ", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = "
"""What torch.autograd.profiler.emit_nvtx appends to a name, in this order (torch/csrc/profiler/util.cpp)."""


def thread(global_tid: int) -> tuple[int, int]:
    """(process id, thread id) of a globalTid."""
    return (global_tid >> 24) & 0xFFFFFF, global_tid & 0xFFFFFF


def tracks(columns: Columns, global_tid: Array) -> Array:
    """Codes of host threads."""
    distinct, position = np.unique(global_tid, return_inverse=True)
    codes = columns.host_tracks.codes(map(thread, distinct.tolist()), len(distinct))
    found: Array = codes[position.reshape(-1)]
    return found


def read(db: Database, columns: Columns, process: int, of_process: str) -> None:
    """Append the closed ranges of a process. Those that still ran, or began before the recording, are not there."""
    if not db.has(TABLE, "start", "end", "eventType", "globalTid"):
        return
    text = 'CAST("text" AS TEXT)' if db.has(TABLE, "text") else "NULL"
    where = f'"eventType" IN ({RANGES}) AND "end" >= "start"'
    values: tuple[int, ...] = ()
    if process != UNKNOWN:
        where, values = f"{where} AND {of_process}", (process,)
    name, sizes = _name(text), _sizes(text)
    registered = f"CASE WHEN {text} IS NULL THEN {_column(db, 'textId')} END"
    numbers = [
        '"start"',
        '"end"',
        '"globalTid"',
        _number(text, _SEQ),
        _number(text, _ID),
        _at(text, _SIZES),
        registered,
    ]
    *found, sized, text_id = db.ints(TABLE, numbers, where, *values)
    count = len(sized)
    codes = columns.names.codes(chain.from_iterable(db.rows(TABLE, [name], where, *values)), count)
    texts = db.texts("StringIds", text_id)
    for one in np.unique(text_id[text_id >= 0]).tolist():
        codes[text_id == one] = columns.names[texts.get(one, "")]
    shapes = np.zeros(count, dtype=np.int32)
    if (sized > 0).any():
        shapes = columns.texts["shapes"].codes(chain.from_iterable(db.rows(TABLE, [sizes], where, *values)), count)
    labels = columns.names.labels()
    named = np.array([label not in ("", CAPTURE) for label in labels], dtype=bool)[codes]
    is_op = np.array([_OP.match(one) is not None for one in labels], dtype=bool)[codes]
    backward = np.array([_BACKWARD.match(one) is not None for one in labels], dtype=bool)[codes]
    for kind, mine in ((SpanKind.OP, named & is_op), (SpanKind.ANNOTATION, named & ~is_op)):
        if mine.any():
            _append(columns, kind, [one[mine] for one in found], codes[mine], shapes[mine], backward[mine])


def _column(db: Database, name: str) -> str:
    return f'"{name}"' if db.has(TABLE, name) else "NULL"


def _at(text: str, mark: str) -> str:
    return f"instr({text}, '{mark}')"


def _number(text: str, mark: str) -> str:
    """The number after a mark. CAST reads it up to the first other character."""
    return f"CASE WHEN {_at(text, mark)} THEN CAST(substr({text}, {_at(text, mark)} + {len(mark)}) AS INTEGER) END"


def _name(text: str) -> str:
    """What stands before the first mark."""
    first = ", ".join(f"NULLIF({_at(text, mark)}, 0)" for mark in (_SEQ, _ID, _SIZES))
    return f"COALESCE(substr({text}, 1, COALESCE({first}, length({text}) + 1) - 1), '')"


def _sizes(text: str) -> str:
    begin = f"({_at(text, _SIZES)} + {len(_SIZES)})"
    end = f"COALESCE(NULLIF({_at(text, _INPUTS)}, 0), length({text}) + 1)"
    return f"CASE WHEN {_at(text, _SIZES)} THEN substr({text}, {begin}, {end} - {begin}) ELSE '' END"


def _append(columns: Columns, kind: SpanKind, found: list[Array], codes: Array, shapes: Array, backward: Array) -> None:
    """`found`: start, end, thread, sequence number and id, one row each."""
    start, end, owner, sequence, ident = found
    count = len(start)
    first = columns.add_spans(
        kind,
        name=codes,
        track=tracks(columns, owner),
        ts_ns=start,
        dur_us=(end - start) / 1000,
        correlation=np.full(count, UNKNOWN, dtype=np.int64),
        external_id=ident,
    )
    if kind is not SpanKind.OP:
        return
    empty = np.zeros(count, dtype=np.int32)
    columns.add_side(
        kind,
        first,
        {
            "shapes": shapes,
            "dtypes": empty,
            "sequence": sequence,
            # Which thread the forward op ran on is not recorded; that an op runs backward is what counts.
            "forward_thread": backward.astype(np.int64),
            "stack": empty,
            "finished": np.ones(count, dtype=bool),
        },
    )
