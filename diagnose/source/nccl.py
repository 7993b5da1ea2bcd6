"""What NCCL says of its calls in the payloads of its NVTX ranges: how large a message is, and of how many ranks.

A payload is a blob of NVTX_EVENTS.binaryData, which exports hold if asked to (nsys export --include-blobs=true). It
begins with four 64-bit numbers: domain, schema, size, and one more; then come the values, at the offsets that
NVTX_PAYLOAD_SCHEMA_ENTRIES says. No export with such blobs was at hand: how they begin is by two independent readers of
them in the package nsys-ai (seen 2026-11-22), names and offsets of the values by an export of 2026.2.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

import numpy as np

from diagnose.source.columns import Array, Columns
from diagnose.source.sqlite import UNKNOWN, Database, text_of

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
        _append(columns, found, ranks)


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


def _append(columns: Columns, found: list[tuple[int, str, dict[str, int]]], ranks: dict[int, int]) -> None:
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
