"""Reading the packed JSON of lists of numbers that `diagnose profile` leaves beside a trace. It is as untrusted."""

from __future__ import annotations

import gzip
import zlib
from typing import TypeVar

import msgspec
import numpy as np

from diagnose.storage.remote import Place
from diagnose.trace import lenient
from diagnose.trace.intervals import IntArray

MOST_BYTES = 64 << 20  # Uncompressed: a node or an op takes some tens.

MOST_NAMES = 10_000

MOST_ITEMS, MOST_EDGES = 200_000, 4_000_000
"""Nodes or ops, and edges between them: the agent writes up to 60,000 (our choice)."""

T = TypeVar("T", bound=msgspec.Struct)


def unpacked(path: Place, content: type[T], what: str) -> tuple[T, list[str]]:
    """What a file holds, and what of it cannot be read. Raises ValueError, in a few words, and OSError."""
    try:
        with path.open("rb") as packed, gzip.open(packed) as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"is larger than {MOST_BYTES >> 20} MB")
        return lenient.read(raw, content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError("is cut off or damaged") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no {what}: {error}") from error


def check_size(what: str, names: int, items: int, edges: int) -> None:
    """Raises ValueError if there is more than anything of ours writes."""
    if names > MOST_NAMES or items > MOST_ITEMS or edges > MOST_EDGES:
        raise ValueError(f"is no {what}: it is too large")


def within(values: list[int], low: int, high: int, what: str) -> IntArray:
    """As an array. Raises ValueError if one is not in [low, high)."""
    if any(not low <= value < high for value in values):
        raise ValueError(f"is no {what}: a number is out of its range")
    return np.array(values, dtype=np.int64)
