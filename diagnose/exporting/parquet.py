"""A table as a file of Parquet. Needs the extra `parquet`; the only place that knows pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diagnose.exporting.errors import CannotExport
from diagnose.tables.schema import RANK, Table

ROWS = 1 << 20
"""Of a row group: what is converted at a time."""


def require() -> None:
    """Raise CannotExport if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise CannotExport("Parquet needs pyarrow. Install it with: pip install 'torch-diagnose[parquet]'.")


def write(frame: pd.DataFrame, table: Table, rank: int, path: Path) -> None:
    """Write the table of a rank to a new file. Raises OSError."""
    from pyarrow import parquet

    parts = _parts(frame, table, rank)
    first = next(parts)
    with parquet.ParquetWriter(path, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part)


def renumber(source: Path, rank: int, path: Path) -> None:
    """Write the table of a file to a new one, as that of another rank. Raises OSError."""
    import pyarrow as pa
    from pyarrow import parquet

    with (
        parquet.ParquetFile(source) as old,
        parquet.ParquetWriter(path, old.schema_arrow, compression="zstd") as writer,
    ):
        for at in range(old.num_row_groups):
            part = old.read_row_group(at)
            numbers = pa.array(np.full(len(part), rank, dtype=np.int32))
            writer.write_table(part.set_column(0, old.schema_arrow.field(0), numbers))


def _parts(frame: pd.DataFrame, table: Table, rank: int) -> Iterator[Any]:
    """The rows as tables of Arrow, ROWS at a time; one without rows if there are none."""
    import pyarrow as pa

    types = {"int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64(), "bool": pa.bool_()}
    types["text"] = pa.dictionary(pa.int32(), pa.string())
    columns = {"rank": RANK, **table.columns}
    schema = pa.schema([(name, types[column.dtype]) for name, column in columns.items()])
    for start in range(0, max(len(frame), 1), ROWS):
        part = frame.iloc[start : start + ROWS]
        numbers = pd.Series(rank, index=part.index, dtype="int32")
        yield pa.Table.from_pandas(part.assign(rank=numbers), schema=schema, preserve_index=False)
