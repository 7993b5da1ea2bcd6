"""Columns of spans that several tables have, and of what was recorded of them besides."""

from __future__ import annotations

import numpy as np
import pandas as pd

from diagnose.facts.core.base import Facts
from diagnose.tables.frame import Array, Values, words
from diagnose.trace.intervals import IntArray


def times(facts: Facts, ids: IntArray) -> dict[str, Values]:
    """The columns `start_ns` and `dur_ns`."""
    spans = facts.rank.spans
    return {name: spans[name].to_numpy()[ids] for name in ("start_ns", "dur_ns")}


def names(facts: Facts, ids: IntArray) -> pd.Categorical:
    """The names of spans; unknown where the id is -1."""
    column = facts.rank.spans["name"].cat
    codes = np.where(ids >= 0, column.codes.to_numpy()[ids], -1).astype(np.int64)
    return words(codes, list(map(str, column.categories)))


def step_numbers(facts: Facts, ids: IntArray) -> IntArray:
    """The number of the step of each span, -1 outside of steps."""
    numbers = np.array([*(mark.number for mark in facts.rank.steps), -1], dtype=np.int64)
    found: IntArray = numbers[facts.rank.spans["step"].to_numpy()[ids]]
    return found


def told_text(table: pd.DataFrame, name: str, row: IntArray) -> pd.Categorical:
    """A column of texts in these rows of a side table; unknown in row -1."""
    column = table[name].cat
    codes = np.append(column.codes.to_numpy(), -1)[row].astype(np.int64)
    return words(codes, list(map(str, column.categories)))


def told(table: pd.DataFrame, name: str, row: IntArray, unknown: float) -> Array:
    """A column of numbers in these rows of a side table, with what stands for unknown in row -1."""
    values = table[name].to_numpy()
    found: Array = np.append(values, np.array(unknown).astype(values.dtype))[row]
    return found


def rows_of(table: pd.DataFrame, ids: IntArray) -> IntArray:
    """The row of a side table about each span, or -1."""
    return table.index.get_indexer(pd.Index(ids)).astype(np.int64)
