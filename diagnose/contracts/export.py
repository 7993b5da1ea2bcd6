"""What an export says of itself, in a file beside its tables."""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1
FILE = "diagnose-export.json"


class Written(msgspec.Struct, frozen=True):
    """A table that was written."""

    table: str
    files: int
    """One for each rank that has it."""
    rows: int
    """In all of them."""


class Absent(msgspec.Struct, frozen=True):
    """A table that ranks do not have: what it is made of was not recorded."""

    table: str
    ranks: tuple[int, ...]
    what: str
    """What is missing."""
    how_to_record_it: str


class Export(msgspec.Struct, frozen=True):
    """What was written, and what was not."""

    schema_version: int
    tool_version: str
    ranks: tuple[int, ...]
    tables: tuple[Written, ...]
    absent: tuple[Absent, ...]
    notes: tuple[str, ...]
    """Sentences on files that could not be read, or were not used."""

    def to_json(self) -> str:
        """As indented JSON text, ending in a newline."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"
