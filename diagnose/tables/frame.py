"""From arrays to a frame with exactly the columns of a table; what stands for unknown becomes missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.tables.schema import Column, Table
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Values = Any
"""An array, a category, or a sequence of Python values in which None is unknown. Shape (rows,)."""


def frame(table: Table, columns: Mapping[str, Values]) -> pd.DataFrame:
    """The table with these columns, in its order. Raises ValueError if one is missing, or too many."""
    if set(columns) != set(table.columns):
        raise ValueError(f"{table.name}: {sorted(set(columns) ^ set(table.columns))}")
    made = {name: _typed(columns[name], column) for name, column in table.columns.items()}
    return pd.DataFrame(made, copy=False)


def empty(table: Table) -> pd.DataFrame:
    """The table without rows."""
    return frame(table, {name: [] for name in table.columns})


def words(codes: IntArray, labels: Sequence[str]) -> pd.Categorical:
    """Texts by their position in `labels`, which may repeat themselves; -1 is unknown."""
    number: dict[str, int] = {}
    target = np.array([*(number.setdefault(label, len(number)) for label in labels), -1], dtype=np.int64)
    return pd.Categorical.from_codes(target[codes], categories=pd.Index(list(number), dtype=object))


def places(sites: Sequence[Site | None]) -> dict[str, Values]:
    """The columns `file`, `line` and `function` of places in the user's code."""
    number: dict[Site, int] = {}
    codes = np.array([-1 if site is None else number.setdefault(site, len(number)) for site in sites], dtype=np.int64)
    return {
        "file": words(codes, [one.file for one in number]),
        "line": np.array([*(one.line or -1 for one in number), -1], dtype=np.int64)[codes],
        "function": words(codes, [one.function for one in number]),
    }


def _typed(values: Values, column: Column) -> Values:
    if column.dtype == "text":
        return _text(values)
    if column.dtype == "float64":
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    if column.dtype == "bool":
        return pd.array(values, dtype="boolean")
    return _integers(values, column)


def _integers(values: Values, column: Column) -> Values:
    if not isinstance(values, np.ndarray):
        return pd.array(values, dtype=column.dtype.capitalize())
    within = np.iinfo(column.dtype)
    known = np.clip(values, within.min, within.max).astype(column.dtype)
    unknown = np.zeros(len(known), dtype=bool) if column.null is None else known == column.null
    return pd.arrays.IntegerArray(known, unknown)


def _text(values: Values) -> pd.Categorical:
    """A category with the texts that occur, and without the empty one."""
    found = values if isinstance(values, pd.Categorical) else pd.Categorical(values)
    codes, labels = np.asarray(found.codes, dtype=np.int64), list(map(str, found.categories))
    used = np.unique(codes)
    kept = [int(code) for code in used if code >= 0 and labels[code]]
    target = np.full(len(labels) + 1, -1, dtype=np.int64)
    target[kept] = np.arange(len(kept))
    return pd.Categorical.from_codes(target[codes], categories=pd.Index([labels[code] for code in kept], dtype=object))
