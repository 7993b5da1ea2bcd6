"""NVTX ranges as PyTorch and its users write them: ops with a number and shapes, and annotations; NCCL's payloads,
and samples of Python's stacks.

A payload is a blob of NVTX_EVENTS.binaryData, which exports hold if asked to (nsys export --include-blobs=true). It
begins with four 64-bit numbers: domain, schema, size, and one more; then come the values, at the offsets that
NVTX_PAYLOAD_SCHEMA_ENTRIES says. No export with such blobs was at hand: how they begin is by two independent readers of
them in the package nsys-ai (seen 2026-11-22), names and offsets of the values by an export of 2026.2.

A thread of the recorder takes samples, of all threads of Python in turn. Whose a stack is only its outermost frame
tells, so that just those of the main thread are used: they begin in a module, others in a function of `threading`.
"""

import html
import posixpath
import re
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

from diagnose.source.columns import Array, Columns, Vocabulary, printable
from diagnose.source.sqlite import UNKNOWN, Database, text_of
from diagnose.trace import frames
from diagnose.trace.enums import SpanKind
from diagnose.trace.nsys_files import BLOB, DOMAIN, MARK, PAYLOAD_HEAD, SAMPLES, TABLE

RANGES = "59, 60"  # eventType of push/pop ranges and of ranges that may end on another thread (ENUM_NSYS_EVENT_TYPE).
CAPTURE = "diagnose.capture"  # A range that only tells nsys when to record; `diagnose profile --tracer nsys` opens it.

_OP = re.compile(r"(?!FSDP::)(\w+::|.*Backward\d+\Z)")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|.*Backward\d+\Z")
_BETWEEN = b"\x1f"  # Between a name and the sizes, where both are one text: a character that sizes never have.

_SEQ, _ID, _SIZES, _INPUTS = ", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = "
"""What torch.autograd.profiler.emit_nvtx appends to a name, in this order (torch/csrc/profiler/util.cpp)."""

_WRITTEN = re.compile(rf"\A(.*?)(?:{_SEQ}(\d{{1,18}}))?(?:{_ID}\d+)?(?:{_SIZES}(.*?))?(?:{_INPUTS}.*)?\Z", re.DOTALL)

_TID_BITS = 0xFFFFFF  # Of a globalTid: the thread's id, and left of it the process's (user guide).
OF_HOST = f'("globalTid" & ~{_TID_BITS}) = ?'


def thread(global_tid: int) -> tuple[int, int]:
    """(process id, thread id) of a globalTid."""
    return global_tid >> 24 & _TID_BITS, global_tid & _TID_BITS


def tracks(columns: Columns, global_tid: Array) -> Array:
    """The code of the host track of each globalTid."""
    distinct, position = np.unique(global_tid, return_inverse=True)
    codes = columns.host_tracks.codes(map(thread, distinct.tolist()), len(distinct))
    found: Array = codes[position.reshape(-1)]
    return found


def add_host(columns: Columns, kind: SpanKind, names: Array, found: dict[str, Array]) -> int:
    """Append spans of host threads, by the columns of a table; returns the row of the first."""
    start, end = found["start"], found["end"]
    track, correlation = tracks(columns, found["globalTid"]), found.get("correlationId", UNKNOWN)
    return columns.add_spans(
        kind, names, track=track, ts_ns=start, dur_us=(end - start) / 1000, correlation=correlation
    )


def _of(process: int) -> tuple[str, tuple[int, ...]]:
    """An SQL condition, to append, and its values, for the rows of one process; empty for UNKNOWN: all rows."""
    return ("", ()) if process == UNKNOWN else (f" AND {OF_HOST}", (process,))


def read(db: Database, columns: Columns, process: int) -> None:
    """Append a process's closed ranges as ops and annotations, with NCCL's sizes; ranges without an end are lost."""
    if not db.has(TABLE, "start", "end", "eventType", "globalTid"):
        return
    text, (of_process, values) = _column(db, "text"), _of(process)
    where = f'"eventType" IN ({RANGES}) AND "end" >= "start"{of_process}'
    both = f"{_name(text)} || char({_BETWEEN[0]}) || {_sizes(text)}"
    registered = f"CASE WHEN {text} IS NULL THEN {_column(db, 'textId')} END"
    numbers = ['"start"', '"end"', '"globalTid"', _number(text, _SEQ), registered]
    start, end, owner, sequence, text_id = db.ints(TABLE, numbers, where, *values)
    codes, shapes = _named_and_sized(db.rows(TABLE, [both], where, *values), columns)
    by_id = text_id >= 0
    ids, at = np.unique(text_id[by_id], return_inverse=True)
    texts = db.texts("StringIds", ids)
    parts = [_WRITTEN.findall(texts.get(one, ""))[0] for one in ids.tolist()]
    codes[by_id] = columns.names.codes((name for name, _, _ in parts), len(parts))[at]
    shapes[by_id] = columns.texts["shapes"].codes((sizes for _, _, sizes in parts), len(parts))[at]
    sequence[by_id] = np.array([int(number or UNKNOWN) for _, number, _ in parts], dtype=np.int64)[at]
    labels = columns.names.labels()
    named = np.array([label not in ("", CAPTURE) for label in labels], dtype=bool)[codes]
    is_op = np.array([_OP.match(one) is not None for one in labels], dtype=bool)[codes]
    backward = np.array([_BACKWARD.match(one) is not None for one in labels], dtype=bool)[codes]
    ops, own = named & is_op, named & ~is_op
    first_op, first = (
        add_host(columns, kind, codes[some], {"start": start[some], "end": end[some], "globalTid": owner[some]})
        for kind, some in ((SpanKind.OP, ops), (SpanKind.ANNOTATION, own))
    )
    if ops.any():
        columns.add_side(SpanKind.OP, first_op, _side(shapes[ops], sequence[ops], backward[ops]))
    if own.any() and db.has(TABLE, BLOB) and db.has(_ENTRIES, "domainId", "schemaId", "type", "name", "offset"):
        operations = [operation(label) for label in labels]
        (ids,) = db.ints(TABLE, ["rowid"], where, *values)
        rows = zip(ids[own].tolist(), range(first, columns.rows), codes[own].tolist(), strict=True)
        ranges = {ident: (row, operations[code]) for ident, row, code in rows if operations[code]}
        blobs = db.rows(TABLE, ["rowid", f'CAST("{BLOB}" AS BLOB)'], f'"{BLOB}" IS NOT NULL AND {where}', *values)
        add_sizes(columns, blobs, db, ranges)


def _named_and_sized(rows: Iterable[tuple[bytes]], columns: Columns) -> tuple[Array, Array]:
    """The name code and shape code of each text (name, _BETWEEN, sizes); each distinct text is split once."""
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
    """SQL for the number after a mark: NULL without the mark, 0 if no digit follows. CAST ignores what follows it."""
    return f"CAST(substr({text}, {_at(text, mark)} + {len(mark)}) AS INTEGER)"


def _name(text: str) -> str:
    first = ", ".join(_at(text, mark) for mark in (_SEQ, _ID, _SIZES))
    return f"COALESCE(substr({text}, 1, COALESCE({first}, length({text}) + 1) - 1), '')"


def _sizes(text: str) -> str:
    """SQL for the part of a text that lists sizes; empty if there is none."""
    begin = f"({_at(text, _SIZES)} + {len(_SIZES)})"
    end = f"COALESCE({_at(text, _INPUTS)}, length({text}) + 1)"
    return f"COALESCE(substr({text}, {begin}, {end} - {begin}), '')"


def _side(shapes: Array, sequence: Array, backward: Array) -> dict[str, Array]:
    """Columns of the ops' own table; `forward_thread` only says whether an op runs backward."""
    empty = np.zeros(len(shapes), dtype=np.int32)
    known = {"shapes": shapes, "sequence": sequence, "forward_thread": backward.astype(np.int64)}
    rest = dict.fromkeys(("dtypes", "strides", "scalars", "stack"), empty)
    return {**known, **rest, "finished": np.ones(len(shapes), dtype=bool)}


_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_NUMBERS = {5: struct.Struct("<i"), 18: struct.Struct("<Q"), 22: struct.Struct("<Q")}
"""By the type of an entry, as far as NCCL's have it: an int, a 64-bit id and a size."""

_COMMUNICATOR, _SIZE, _RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
_GATHER, _SCATTER = "all_gather", "reduce_scatter"
_WORD = re.compile("(?<=[a-z])(?=[A-Z])")

_Schema = dict[str, tuple[int, struct.Struct]]


def operation(name: str) -> str:
    """The collective of a range, named as in its kernel: "all_gather" of "ncclAllGather"; "" if it is not of NCCL."""
    return _WORD.sub("_", name.removeprefix("nccl")).lower() if name.startswith("nccl") else ""


def add_sizes(
    columns: Columns, blobs: Iterable[tuple[int, object]], db: Database, ranges: dict[int, tuple[int, str]]
) -> None:
    """Append collectives of known size. `blobs`: (rowid, payload); `ranges`: (row in `columns`, operation) by rowid."""
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
    """By (domain, schema), the offset and number type of each value by name, of types in _NUMBERS."""
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
    if not isinstance(blob, bytes) or len(blob) < PAYLOAD_HEAD.size:
        return {}
    domain, schema, *_ = PAYLOAD_HEAD.unpack_from(blob)
    places = schemas.get((domain, schema), {})
    return {
        name: int(number.unpack_from(blob, PAYLOAD_HEAD.size + offset)[0])
        for name, (offset, number) in places.items()
        if PAYLOAD_HEAD.size + offset + number.size <= len(blob)
    }


def _append_calls(columns: Columns, found: list[tuple[int, str, dict[str, int]]], ranks: dict[int, int]) -> None:
    """Add NCCL calls as collectives; sizes are in bytes, as NCCL's payload does not say the type."""
    count, sizes = len(found), [_per_rank(name, values, ranks) for _, name, values in found]
    side: dict[str, Array] = {
        "operation": columns.texts["operation"].codes((name.encode() for _, name, _ in found), count),
        **{name: np.zeros(count, dtype=np.int32) for name in ("group", "group_description", "group_ranks")},
        "peer": np.full(count, UNKNOWN, dtype=np.int64),
        "dtype": columns.texts["dtype"].codes([b"Byte"] * count, count),
        "sequence": np.full(count, UNKNOWN, dtype=np.int64),
    }
    for at, name in enumerate(("group_size", "in_elements", "out_elements")):
        side[name] = np.array([per_rank[at] for per_rank in sizes], dtype=np.int64)
    columns.add_collectives(np.array([row for row, _, _ in found], dtype=np.int64), side)


def _per_rank(name: str, values: dict[str, int], ranks: dict[int, int]) -> tuple[int, int, int]:
    """(group size, bytes in, bytes out) of a call, -1 unknown. NCCL records a gather's input, a scatter's output."""
    size, group = min(values[_SIZE], 1 << 48), ranks.get(values.get(_COMMUNICATOR, UNKNOWN), UNKNOWN)
    whole = size * group if 0 < group <= 1 << 14 else UNKNOWN
    return group, whole if name == _SCATTER else size, whole if name == _GATHER else size


DEEPEST = 4096  # Frames of a stack; Python itself allows 1,000 calls unless told otherwise.

_Frame = tuple[int, int, int]
_FRAME = struct.Struct("<qqI4x")
_COUNTS, _FRAMES = (40, 44), 48
"""Where in a blob the number of frames stands, by version, and where the frames begin. In JSON of 2023.4 and 2024.2 two
32-bit numbers, the count and a gap come first; newer blobs have the count in the place of the gap (seen 2026-11-22 in
a public script that reads them: github.com, "Attribute live cutlass launches via nsys Python backtrace")."""


def _frames(blob: object) -> list[_Frame]:
    """(function, file, line) of each frame of a sample, the innermost first; the first two are ids of StringIds.
    Nothing if the blob is no sample: the number of frames has to fit its length."""
    if not isinstance(blob, bytes) or len(blob) <= _FRAMES:
        return []
    count, rest = divmod(len(blob) - _FRAMES, _FRAME.size)
    if rest or count > DEEPEST or count not in (int.from_bytes(blob[at : at + 4], "little") for at in _COUNTS):
        return []
    return list(_FRAME.iter_unpack(blob[_FRAMES:]))


LAST_LINE = 999_999_999  # No file has more; a larger number is none of a line.

_MODULES = ("<module>", "_run_module_as_main")  # What the main thread's stack begins with.


def add_samples(db: Database, columns: Columns, process: int) -> None:
    """Keep, of each sample of the main thread, the innermost frame of the user's own code."""
    if not db.has(TABLE, "start", "eventType", "globalTid", "domainId", BLOB):
        return
    mine, values = _of(process)
    named = ['CAST("domainId" AS INTEGER)', f"CAST({_column(db, 'text')} AS TEXT)"]
    rows = db.rows(TABLE, named, f'"eventType" = {DOMAIN}{mine}', *values)
    domains = sorted({number for number, text in rows if isinstance(number, int) and text_of(text) == SAMPLES})
    if not domains:
        return
    where = f'"eventType" = {MARK} AND "domainId" IN ({", ".join(map(str, domains))}) AND "{BLOB}" IS NOT NULL{mine}'
    start, owner = db.ints(TABLE, ['"start"', '"globalTid"'], where, *values)
    stacks, inner = Vocabulary(), Vocabulary()  # There are few, and many samples.
    blobs = db.rows(TABLE, [f'CAST("{BLOB}" AS BLOB)'], where, *values)
    stack = np.fromiter((stacks[tuple(_frames(blob))] for (blob,) in blobs), np.int64, len(start))
    texts = db.texts("StringIds", np.array([one for some in stacks for frame in some for one in frame[:2]]))

    @lru_cache(None)
    def own(frame: _Frame) -> bool:
        return frame[2] <= LAST_LINE and frames.is_user_frame(_frame_name(texts, frame))

    def innermost(some: tuple[_Frame, ...]) -> int:
        is_main = some and html.unescape(texts.get(some[-1][0], "")) in _MODULES
        return next((inner[frame] for frame in some if own(frame)), UNKNOWN) if is_main else UNKNOWN

    frame = np.array([innermost(some) for some in stacks], dtype=np.int64)[stack]
    known = frame >= 0
    if known.any():
        main = owner[known] & ~_TID_BITS | owner[known] >> 24 & _TID_BITS  # Its id is that of the process.
        columns.samples = {"ts_ns": start[known], "track": tracks(columns, main), "frame": frame[known]}
        columns.frames = _short([_frame_name(texts, one) for one in inner])


def _frame_name(texts: dict[int, str], frame: _Frame) -> str:
    """The name of a frame as torch.profiler writes it. Some versions of Nsight escape names as for HTML."""
    function, file, line = frame
    return html.unescape(f"{texts.get(file, '')}({line}): {texts.get(function, '')}")


def _short(names: Sequence[str]) -> list[str]:
    """The names without the folder that all files are in, as torch.profiler cuts off where it imports from."""
    folders = {posixpath.dirname(name.rpartition("(")[0]) for name in names}
    shared = posixpath.commonpath(folders) if folders and all(folder.startswith("/") for folder in folders) else ""
    return [printable(name[len(shared) + 1 :] if len(shared) > 1 else name) for name in names]
