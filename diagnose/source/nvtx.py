"""NVTX ranges as PyTorch and its users write them: ops with a number and shapes, and annotations.

A payload is a blob of NVTX_EVENTS.binaryData, which exports hold if asked to (nsys export --include-blobs=true). It
begins with four 64-bit numbers: domain, schema, size, and one more; then come the values, at the offsets that
NVTX_PAYLOAD_SCHEMA_ENTRIES says. No export with such blobs was at hand: how they begin is by two independent readers of
them in the package nsys-ai (seen 2026-11-22), names and offsets of the values by an export of 2026.2.
"""

import re
import struct
from collections.abc import Iterable
from itertools import chain

import numpy as np

from diagnose.source.columns import Array, Columns, Vocabulary
from diagnose.source.sqlite import UNKNOWN, Database, text_of
from diagnose.trace.enums import SpanKind

TABLE = "NVTX_EVENTS"
RANGES = "59, 60"  # eventType of push/pop ranges and of ranges that may end on another thread (ENUM_NSYS_EVENT_TYPE).
CAPTURE = "diagnose.capture"  # A range that only tells nsys when to record; `diagnose profile --tracer nsys` opens it.

_OP = re.compile(r"(?!FSDP::)(\w+::|.*Backward\d+\Z)")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|.*Backward\d+\Z")
_BETWEEN = b"\x1f"  # Between a name and the sizes, where both are one text: a character that sizes never have.

_SEQ, _ID, _SIZES, _INPUTS = ", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = "
"""What torch.autograd.profiler.emit_nvtx appends to a name, in this order (torch/csrc/profiler/util.cpp)."""

_WRITTEN = re.compile(rf"\A(.*?)(?:{_SEQ}(\d{{1,18}}))?(?:{_ID}\d+)?(?:{_SIZES}(.*?))?(?:{_INPUTS}.*)?\Z", re.DOTALL)


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
    text = _column(db, "text")
    where = f'"eventType" IN ({RANGES}) AND "end" >= "start"'
    values: tuple[int, ...] = ()
    if process != UNKNOWN:
        where, values = f"{where} AND {of_process}", (process,)
    both = f"{_name(text)} || char({_BETWEEN[0]}) || {_sizes(text)}"
    registered = f"CASE WHEN {text} IS NULL THEN {_column(db, 'textId')} END"
    numbers = ['"start"', '"end"', '"globalTid"', _number(text, _SEQ), registered]
    *found, text_id = db.ints(TABLE, numbers, where, *values)
    codes, shapes = _named_and_sized(db.rows(TABLE, [both], where, *values), columns)
    by_id = text_id >= 0
    ids, at = np.unique(text_id[by_id], return_inverse=True)
    texts = db.texts("StringIds", ids)
    cut = [_WRITTEN.findall(texts.get(one, ""))[0] for one in ids.tolist()]
    codes[by_id] = columns.names.codes((name for name, _, _ in cut), len(cut))[at]
    shapes[by_id] = columns.texts["shapes"].codes((sizes for _, _, sizes in cut), len(cut))[at]
    found[-1][by_id] = np.array([int(number or UNKNOWN) for _, number, _ in cut], dtype=np.int64)[at]
    labels = columns.names.labels()
    named = np.array([label not in ("", CAPTURE) for label in labels], dtype=bool)[codes]
    is_op = np.array([_OP.match(one) is not None for one in labels], dtype=bool)[codes]
    backward = np.array([_BACKWARD.match(one) is not None for one in labels], dtype=bool)[codes]
    first, own = columns.rows, named & ~is_op
    for kind, mine in ((SpanKind.OP, named & is_op), (SpanKind.ANNOTATION, own)):
        if mine.any():
            first = _append(columns, kind, [one[mine] for one in found], codes[mine], shapes[mine], backward[mine])
    if own.any() and told(db, TABLE):
        operations = [operation(label) for label in labels]
        (ids,) = db.ints(TABLE, ["rowid"], where, *values)
        rows = zip(ids[own].tolist(), range(first, columns.rows), codes[own].tolist(), strict=True)
        ranges = {ident: (row, operations[code]) for ident, row, code in rows if operations[code]}
        blobs = db.rows(TABLE, ["rowid", f'CAST("{BLOB}" AS BLOB)'], f'"{BLOB}" IS NOT NULL AND {where}', *values)
        add_sizes(columns, blobs, db, ranges)


def _named_and_sized(rows: Iterable[tuple[bytes]], columns: Columns) -> tuple[Array, Array]:
    """Codes of names and of sizes: both of a range are one text, of which there are few, so that each is cut once."""
    both = Vocabulary()
    at = np.fromiter(map(both.__getitem__, chain.from_iterable(rows)), np.int32)
    cut = [one.rpartition(_BETWEEN)[::2] for one in both]
    names = columns.names.codes((name for name, _ in cut), len(cut))
    sizes = columns.texts["shapes"].codes((text for _, text in cut), len(cut))
    return (names[at], sizes[at]) if len(cut) else (at, at)


def _column(db: Database, name: str) -> str:
    return f'"{name}"' if db.has(TABLE, name) else "NULL"


def _at(text: str, mark: str) -> str:
    return f"NULLIF(instr({text}, '{mark}'), 0)"


def _number(text: str, mark: str) -> str:
    """The number after a mark, or NULL. CAST reads it up to the first other character."""
    return f"CAST(substr({text}, {_at(text, mark)} + {len(mark)}) AS INTEGER)"


def _name(text: str) -> str:
    first = ", ".join(_at(text, mark) for mark in (_SEQ, _ID, _SIZES))
    return f"COALESCE(substr({text}, 1, COALESCE({first}, length({text}) + 1) - 1), '')"


def _sizes(text: str) -> str:
    """What stands after their mark; nothing if there are none."""
    begin = f"({_at(text, _SIZES)} + {len(_SIZES)})"
    end = f"COALESCE({_at(text, _INPUTS)}, length({text}) + 1)"
    return f"COALESCE(substr({text}, {begin}, {end} - {begin}), '')"


def _append(columns: Columns, kind: SpanKind, found: list[Array], codes: Array, shapes: Array, backward: Array) -> int:
    """`found`: start, end, thread and sequence number, one row each. Returns the row of the first."""
    start, end, owner, sequence = found
    count = len(start)
    first = columns.add_spans(
        kind,
        name=codes,
        track=tracks(columns, owner),
        ts_ns=start,
        dur_us=(end - start) / 1000,
        correlation=np.full(count, UNKNOWN, dtype=np.int64),
        external_id=np.full(count, UNKNOWN, dtype=np.int64),  # No call refers to it.
    )
    if kind is not SpanKind.OP:
        return first
    empty = np.zeros(count, dtype=np.int32)
    columns.add_side(
        kind,
        first,
        {
            "shapes": shapes,
            "dtypes": empty,
            "strides": empty,
            "scalars": empty,
            "sequence": sequence,
            # Which thread the forward op ran on is not recorded; that an op runs backward is what counts.
            "forward_thread": backward.astype(np.int64),
            "stack": empty,
            "finished": np.ones(count, dtype=bool),
        },
    )
    return first


BLOB = "binaryData"
_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_HEAD = struct.Struct("<4Q")
_NUMBERS = {5: struct.Struct("<i"), 18: struct.Struct("<Q"), 22: struct.Struct("<Q")}
"""By the type of an entry, as far as NCCL's have it: an int, a 64-bit id and a size."""

_COMMUNICATOR, _SIZE, _RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
_GATHER, _SCATTER = "all_gather", "reduce_scatter"
_WORD = re.compile("(?<=[a-z])(?=[A-Z])")

_Schema = dict[str, tuple[int, struct.Struct]]


def told(db: Database, table: str) -> bool:
    """Whether there are payloads, and what says how to read them."""
    return db.has(table, BLOB) and db.has(_ENTRIES, "domainId", "schemaId", "type", "name", "offset")


def operation(name: str) -> str:
    """The collective that a range is of, named as by its kernel; "" if it is of none."""
    return _WORD.sub("_", name.removeprefix("nccl")).lower() if name.startswith("nccl") else ""


def add_sizes(
    columns: Columns, blobs: Iterable[tuple[int, object]], db: Database, ranges: dict[int, tuple[int, str]]
) -> None:
    """Append what is known of collectives: `blobs` are (rowid, payload), `ranges` (row of the columns, operation)."""
    schemas, ranks = _schemas(db), dict[int, int]()
    found = list[tuple[int, str, dict[str, int]]]()
    for rowid, blob in blobs:
        values = _decoded(blob, schemas)
        if _RANKS in values:
            ranks[values.get(_COMMUNICATOR, UNKNOWN)] = values[_RANKS]
        if _SIZE in values and rowid in ranges:
            found.append((*ranges[rowid], values))
    if found:
        _append_calls(columns, found, ranks)


def _schemas(db: Database) -> dict[tuple[int, int], _Schema]:
    numbers = db.columns(_ENTRIES, ("domainId", "schemaId", "type", "offset"))
    names = [text_of(name) for (name,) in db.rows(_ENTRIES, ['CAST("name" AS TEXT)'])]
    found: dict[tuple[int, int], _Schema] = {}
    for name, domain, schema, kind, offset in zip(
        names, *(number.tolist() for number in numbers.values()), strict=True
    ):
        if kind in _NUMBERS:
            found.setdefault((domain, schema), {})[name] = max(offset, 0), _NUMBERS[kind]
    return found


def _decoded(blob: object, schemas: dict[tuple[int, int], _Schema]) -> dict[str, int]:
    """Values by name; none if the blob is no payload of a known schema."""
    if not isinstance(blob, bytes) or len(blob) < _HEAD.size:
        return {}
    domain, schema, *_ = _HEAD.unpack_from(blob)
    places = schemas.get((domain, schema), {})
    return {
        name: int(number.unpack_from(blob, _HEAD.size + offset)[0])
        for name, (offset, number) in places.items()
        if _HEAD.size + offset + number.size <= len(blob)
    }


def _append_calls(columns: Columns, found: list[tuple[int, str, dict[str, int]]], ranks: dict[int, int]) -> None:
    """Bytes stand as elements of one byte: of what type they are is not told."""
    count, sizes = len(found), [_per_rank(name, values, ranks) for _, name, values in found]
    side: dict[str, Array] = {
        "operation": columns.texts["operation"].codes((name.encode() for _, name, _ in found), count),
        **{name: np.zeros(count, dtype=np.int32) for name in ("group", "group_description", "group_ranks")},
        "peer": np.full(count, UNKNOWN, dtype=np.int64),
        "dtype": columns.texts["dtype"].codes([b"Byte"] * count, count),
        "sequence": np.full(count, UNKNOWN, dtype=np.int64),
    }
    for at, name in enumerate(("group_size", "in_elements", "out_elements")):
        side[name] = np.array([size[at] for size in sizes], dtype=np.int64)
    columns.add_collectives(np.array([row for row, _, _ in found], dtype=np.int64), side)


def _per_rank(name: str, values: dict[str, int], ranks: dict[int, int]) -> tuple[int, int, int]:
    """(ranks, bytes in, bytes out). Of a gather NCCL tells what one rank gives, of a scatter what one gets."""
    size, group = min(values[_SIZE], 1 << 48), ranks.get(values.get(_COMMUNICATOR, UNKNOWN), UNKNOWN)
    whole = size * group if 0 < group <= 1 << 14 else UNKNOWN
    return group, whole if name == _SCATTER else size, whole if name == _GATHER else size
