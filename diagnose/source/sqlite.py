"""SQLite files of others, read without trust: nothing is written, ordinary tables only, values of the asked type."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from types import TracebackType
from urllib.parse import quote

import numpy as np

from diagnose.source.base import InputError
from diagnose.source.columns import Array
from diagnose.storage.remote import Place, local
from diagnose.storage.urls import StorageError

UNKNOWN = -1


class Database:
    """An open file. Use it with `with`; sqlite3.Error while reading becomes InputError there."""

    def __init__(self, path: Place, known: Mapping[str, tuple[str, str]]) -> None:
        """Raises InputError if it cannot be opened or its list of tables is damaged.

        `known`: by table, two lists of columns, split by spaces. Where a table is absent or empty, another is read as
        it that has the first list, and either the second one too or a name that begins with the table's.
        """
        self.path = path
        self._names = dict[str, str]()
        self._open = ExitStack()
        try:
            # immutable: no lock, no journal, nothing is ever written beside the user's file.
            where = f"file:{quote(str(local(path).absolute()))}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(where, uri=True)
            self._open.callback(self._connection.close)
            self._connection.text_factory = bytes
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self.tables = self._ordinary_tables()
            self.others = {name for name in self.tables if name not in known and self.filled(name)}  # Not known.
            for name, columns in known.items():
                self._recognise(name, *(part.split() for part in columns))
        except StorageError as error:
            raise InputError(f"Cannot read {path}: {error.strerror}.") from error
        except sqlite3.Error as error:
            self._open.close()
            raise self._damaged(error) from error

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if isinstance(error, sqlite3.Error):
            raise self._damaged(error) from error

    def _damaged(self, error: sqlite3.Error) -> InputError:
        return InputError(f"{self.path} cannot be read as an SQLite database: {error}. Export it again.")

    def _ordinary_tables(self) -> dict[str, frozenset[str]]:
        """Columns by table. Views and virtual tables could run what their author wrote: they are not there."""
        listed = self._connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        names = [text_of(name) for name, sql in listed if text_of(sql).lstrip()[:13].upper() == "CREATE TABLE "]
        found = {}
        for name in names:
            rows = self._connection.execute(f"PRAGMA table_info({_quoted(name)})")
            found[name] = frozenset(text_of(row[1]) for row in rows)
        return found

    def _recognise(self, table: str, needed: Sequence[str], telling: Sequence[str]) -> None:
        """Read another table as `table`, if that is absent or empty: one with `needed`, and its name or `telling`."""
        candidates = [one for one in self.others if self.has(one, *needed)] if not self.filled(table) else []
        candidates = [one for one in candidates if one.startswith(table) or (telling and self.has(one, *telling))]
        if candidates:
            name = self._names[table] = min(candidates, key=lambda one: (not one.startswith(table), one))
            self.tables[table] = self.tables[name]
            self.others.remove(name)

    def filled(self, table: str) -> bool:
        """Whether there is such a table, with rows."""
        return self.has(table) and next(self.rows(table, ["1"], "1 LIMIT 1"), None) is not None

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table, with all these columns."""
        return set(columns) <= self.tables.get(table, frozenset()) if table in self.tables else False

    def columns(self, table: str, names: Sequence[str], where: str = "", *values: int) -> dict[str, Array]:
        """Columns as int64, by row: -1 for NULL and columns that this file lacks, 0 for text without digits."""
        there = [name for name in names if self.has(table, name)]
        found = dict(zip(there, self.ints(table, [f"{_quoted(name)}" for name in there], where, *values), strict=True))
        count = len(found[there[0]]) if there else 0
        return {name: found.get(name, np.full(count, UNKNOWN, dtype=np.int64)) for name in names}

    def ints(self, table: str, expressions: Sequence[str], where: str = "", *values: int) -> list[Array]:
        """Expressions of SQL, which hold no text of the file, as int64: -1 for NULL, 0 for text without digits."""
        if not expressions:
            return []
        numbers = [f"COALESCE(CAST({expression} AS INTEGER), -1)" for expression in expressions]
        flat = np.fromiter(chain.from_iterable(self.rows(table, numbers, where, *values)), dtype=np.int64)
        return list(flat.reshape(-1, len(numbers)).T.copy())

    def rows(self, table: str, expressions: Sequence[str], where: str = "", *values: int) -> sqlite3.Cursor:
        """Expressions of SQL, which must not hold text of the file; texts come as bytes, in the order of the rows."""
        condition = f"WHERE {where}" if where else ""
        return self._connection.execute(f"SELECT {', '.join(expressions)} FROM {self._from(table)} {condition}", values)

    def distinct(self, table: str, expressions: Sequence[str], where: str = "1", *values: int) -> list[tuple[int, ...]]:
        """The different rows of some expressions of SQL, those of integers only."""
        sql = f"SELECT DISTINCT {', '.join(expressions)} FROM {self._from(table)} WHERE {where}"
        return [row for row in self._connection.execute(sql, values) if all(isinstance(one, int) for one in row)]

    def _from(self, table: str) -> str:
        return _quoted(self._names.get(table, table))

    def texts(self, table: str, ids: Array) -> dict[int, str]:
        """The `value` of each of these ids in a table, as far as it has them; {} without these columns."""
        if not self.has(table, "id", "value"):
            return {}
        wanted = set(np.unique(ids).tolist())
        return {number: text_of(value) for number, value in self.rows(table, ["id", "value"]) if number in wanted}


def text_of(value: object) -> str:
    """A text of the file, whatever its bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
