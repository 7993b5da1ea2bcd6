"""Reading autograd's graph of one step, as `diagnose profile` leaves it. It is as untrusted as any trace."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec
import numpy as np

from diagnose.source.columns import printable
from diagnose.trace.intervals import IntArray
from diagnose.trace.model import AutogradGraph

MOST_BYTES = 64 << 20
"""Uncompressed: a node takes some tens."""

MOST_NAMES = 10_000
_LARGEST = 1 << 62


class _Content(msgspec.Struct, frozen=True):
    names: list[str]
    name: list[int]
    number: list[int]
    uses: list[int]
    used: list[int]


def read_graph(path: Path) -> AutogradGraph:
    """The graph in a file. Raises ValueError, in a few words, and OSError."""
    try:
        with gzip.open(path) as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"is larger than {MOST_BYTES >> 20} MB")
        found = msgspec.json.decode(raw, type=_Content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError("is cut off or damaged") from error
    except msgspec.MsgspecError as error:
        raise ValueError("is no graph") from error
    nodes, edges = len(found.name), len(found.uses)
    if len(found.number) != nodes or len(found.used) != edges or len(found.names) > MOST_NAMES:
        raise ValueError("is no graph: its parts do not fit")
    return AutogradGraph(
        names=tuple(printable(name) for name in found.names),
        name=_within(found.name, 0, len(found.names)),
        number=_within(found.number, -1, _LARGEST),
        uses=_within(found.uses, 0, nodes),
        used=_within(found.used, 0, nodes),
    )


def _within(values: list[int], low: int, high: int) -> IntArray:
    if any(not low <= one < high for one in values):
        raise ValueError("is no graph: a number is out of its range")
    return np.array(values, dtype=np.int64)
