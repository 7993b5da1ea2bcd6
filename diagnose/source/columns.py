"""Columns as a reader fills them, batch by batch, before they become tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.trace.enums import SpanKind

Array = npt.NDArray[Any]
DEVICE_WORK = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)
ON_DEVICE = (*DEVICE_WORK, SpanKind.SYNC, SpanKind.GPU_ANNOTATION)
"""Kinds of spans whose track is a device stream."""

_KINDS = list(SpanKind)


class Vocabulary(dict[Any, int]):
    """Dictionary encoding: value -> code, in order of first sight."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code

    def codes(self, values: Iterable[Any], count: int) -> Array:
        """Codes of `count` values, int32."""
        return np.fromiter(map(self.__getitem__, values), np.int32, count)

    def labels(self) -> list[str]:
        """The text of each code, fit to print. Values must be str or bytes."""
        return [printable(v.decode("utf-8", "replace") if isinstance(v, bytes) else v) for v in self]


@dataclass
class Columns:
    """Columns as a reader fills them, batch by batch, in file order. Row numbers are positions in that order."""

    rows: int = 0
    spans: dict[str, list[Array]] = field(default_factory=dict)
    side: dict[SpanKind, dict[str, list[Array]]] = field(default_factory=dict)
    collectives: dict[str, list[Array]] = field(default_factory=dict)
    names: Vocabulary = field(default_factory=Vocabulary)
    host_tracks: Vocabulary = field(default_factory=Vocabulary)
    device_tracks: Vocabulary = field(default_factory=Vocabulary)
    texts: dict[str, Vocabulary] = field(default_factory=dict)
    sync_kinds: Vocabulary = field(default_factory=Vocabulary)

    def add_spans(self, kind: SpanKind, **columns: Array) -> int:
        """Append spans of one kind; returns the row of the first."""
        first, count = self.rows, len(columns["name"])
        columns["kind"] = np.full(count, _KINDS.index(kind), dtype=np.int8)
        for name, values in columns.items():
            self.spans.setdefault(name, []).append(values)
        self.rows += count
        return first

    def add_side(self, kind: SpanKind, first: int, columns: dict[str, Array]) -> None:
        """Append the side-table values of the spans from row `first` on."""
        table = self.side.setdefault(kind, {})
        count = len(next(iter(columns.values())))
        for name, values in {**columns, "row": np.arange(first, first + count, dtype=np.int64)}.items():
            table.setdefault(name, []).append(values)

    def add_collectives(self, rows: Array, columns: dict[str, Array]) -> None:
        """Append collective arguments of the spans at `rows`."""
        for name, values in {**columns, "row": rows}.items():
            self.collectives.setdefault(name, []).append(values)


def is_kind(codes: Array, kinds: Iterable[SpanKind]) -> npt.NDArray[np.bool_]:
    """Which of the kind codes are one of `kinds`."""
    return np.isin(codes, [_KINDS.index(kind) for kind in kinds])


def category(codes: Array, labels: Iterable[str]) -> pd.Categorical:
    """A categorical from codes into a list of labels that may repeat itself. Its categories include ""."""
    merged = Vocabulary({"": 0})
    target = np.fromiter((merged[label] for label in labels), np.int32)
    return pd.Categorical.from_codes(target[codes] if len(target) else codes, categories=pd.Index(list(merged)))


def printable(text: str) -> str:
    """The text with every character that could act on a terminal or a page's layout shown as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
