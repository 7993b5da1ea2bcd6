"""A Rank as one file of plain arrays, which is read faster than any trace. Nothing in such a file is run.

After a fixed head comes a JSON header, then the arrays of all tables in the order in which the header lists them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pandas as pd

from diagnose.source.columns import Array
from diagnose.trace import schema
from diagnose.trace.model import IntegrityNote, Provenance, Rank, Step

_HEAD = struct.Struct("<16sQQ32x")
"""A mark of the layout, the size of the header, and the sum of all that follows the head."""

_MARK = b"diagnose rank 1\n"
_ALIGNED = 64
"""Each array starts at a multiple of this, so that it is used where it lies."""

_INDEX = "."


class _Header(msgspec.Struct):
    index: int
    zero_unix_ns: int
    steps: tuple[Step, ...]
    provenance: Provenance
    integrity: tuple[IntegrityNote, ...]
    arrays: list[tuple[str, str, str, int]]
    """Table, column (_INDEX: row labels), dtype and length."""
    texts: dict[str, dict[str, list[str]]]
    """By table and column: the categories of a column of names, or the values of a column of text."""


def write(rank: Rank, file: BinaryIO) -> None:
    """Write the tables of a rank and what is known of them, but no context, peers, graph or values.

    Raises OSError, and ValueError if it holds what the file cannot.
    """
    arrays = list[tuple[str, str, Array]]()
    texts = dict[str, dict[str, list[str]]]()
    for table in schema.TABLES:
        frame: pd.DataFrame = getattr(rank, table.name)
        texts[table.name] = {}
        if not isinstance(frame.index, pd.RangeIndex):
            arrays.append((table.name, _INDEX, frame.index.to_numpy()))
        for name, column in table.columns.items():
            if column.dtype == "str":
                texts[table.name][name] = frame[name].tolist()
                continue
            if column.dtype == "names":
                texts[table.name][name] = frame[name].cat.categories.tolist()
            categorical = isinstance(frame[name].dtype, pd.CategoricalDtype)
            arrays.append((table.name, name, (frame[name].cat.codes if categorical else frame[name]).to_numpy()))
    listed = [(table, column, str(values.dtype), len(values)) for table, column, values in arrays]
    try:
        header = msgspec.json.encode(
            _Header(rank.index, rank.zero_unix_ns, rank.steps, rank.provenance, rank.integrity, listed, texts)
        )
    except (msgspec.MsgspecError, OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error
    parts = [np.frombuffer(header, dtype=np.uint8)]
    parts += [np.ascontiguousarray(values).view(np.uint8) for _, _, values in arrays]
    file.write(_HEAD.pack(_MARK, len(header), sum(map(_sum, parts)) % (1 << 64)))
    for part in parts:
        file.write(part.data)
        file.write(bytes(_padding(len(part))))


def read(path: Path) -> Rank:
    """The rank in a file. Raises OSError, and ValueError if it is not as `write` left it."""
    raw = np.fromfile(path, dtype=np.uint8)
    if len(raw) < _HEAD.size:
        raise ValueError("is cut off")
    mark, size, total = _HEAD.unpack(raw[: _HEAD.size].tobytes())
    body = raw[_HEAD.size :]
    if mark != _MARK or len(body) % 8 or _sum(body) % (1 << 64) != total:
        raise ValueError("is damaged")
    header = msgspec.json.decode(body[:size].tobytes(), type=_Header)
    columns = dict[str, dict[str, Array]]()
    at = size + _padding(size)
    for table, column, dtype, length in header.arrays:
        end = at + length * np.dtype(dtype).itemsize
        columns.setdefault(table, {})[column] = body[at:end].view(dtype)
        at = end + _padding(end - at)
    tables: dict[str, Any] = {
        one.name: _frame(one, columns.get(one.name, {}), header.texts[one.name]) for one in schema.TABLES
    }
    return Rank(
        index=header.index,
        zero_unix_ns=header.zero_unix_ns,
        steps=header.steps,
        provenance=header.provenance,
        integrity=header.integrity,
        **tables,
    )


def _frame(table: schema.Table, arrays: dict[str, Array], texts: dict[str, list[str]]) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name, column in table.columns.items():
        if column.dtype == "str":
            columns[name] = pd.Series(texts[name], dtype="str")
        elif column.dtype == "names":
            columns[name] = pd.Categorical.from_codes(arrays[name], categories=pd.Index(texts[name]))
        elif column.dtype in schema.ENUMS:
            dtype = schema.enum_dtype(schema.ENUMS[column.dtype])
            columns[name] = pd.Categorical.from_codes(arrays[name], dtype=dtype)
        else:
            columns[name] = arrays[name]
    index = pd.Index(arrays[_INDEX], name="id") if _INDEX in arrays else None
    return pd.DataFrame(columns, index=index, copy=False)


def _padding(size: int) -> int:
    return -size % _ALIGNED


def _sum(raw: Array) -> int:
    """Of the bytes, eight at a time, as if zeros followed."""
    whole = len(raw) // 8 * 8
    return int(raw[:whole].view(np.uint64).sum()) + int.from_bytes(raw[whole:].tobytes(), "little")
