"""Columns as a reader fills them, batch by batch, before they become tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

Array = npt.NDArray[Any]
DEVICE_WORK = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)
ON_DEVICE = (*DEVICE_WORK, SpanKind.SYNC, SpanKind.GPU_ANNOTATION)  # Kinds of spans whose track is a device stream.

_KINDS = list(SpanKind)


class Vocabulary(dict[Any, int]):
    """Dictionary encoding: value -> code, in order of first sight."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code

    def codes(self, values: Iterable[Any], count: int) -> Array:
        """Codes of `count` values, int32; a value not seen before gets the next code."""
        return np.fromiter(map(self.__getitem__, values), np.int32, count)

    def adopted(self, other: Vocabulary) -> Array:
        """For each code of `other`, in order, our code of its value, int32; values that we lack are added."""
        return np.fromiter((self[value] for value in other), np.int32, len(other))

    def labels(self) -> list[str]:
        """The text of each code, fit to print. Values must be str or bytes."""
        return [printable(v.decode("utf-8", "replace") if isinstance(v, bytes) else v) for v in self]


_OF_OPS = ("shapes", "dtypes", "strides", "scalars", "stack")
TEXTS = (*_OF_OPS, "operation", "group", "group_description", "group_ranks", "dtype")
"""Columns of side tables that are dictionary-encoded text. Code 0 of each is the empty text."""


class Columns(Struct):
    """What is kept of some events. A row number is a span's position in order of adding: batch, then category."""

    events: int = 0
    rows: int = 0
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    process_name: str = ""  # Of the recorded process, as the system has it; "" unknown.
    unclassified: int = 0  # Events without a category whose name does not tell what they are.
    windows: list[tuple[object, object]] = field(default_factory=list)  # (start, duration) in us of recording.
    spans: dict[str, list[Array]] = field(default_factory=dict)  # By column; each chunk is of one kind.
    side: dict[SpanKind, dict[str, list[Array]]] = field(default_factory=dict)
    collectives: dict[str, list[Array]] = field(default_factory=dict)
    names: Vocabulary = field(default_factory=Vocabulary)
    host_tracks: Vocabulary = field(default_factory=Vocabulary)
    device_tracks: Vocabulary = field(default_factory=Vocabulary)
    texts: dict[str, Vocabulary] = field(default_factory=lambda: {name: Vocabulary({b"": 0}) for name in TEXTS})
    sync_kinds: Vocabulary = field(default_factory=Vocabulary)
    samples: dict[str, Array] = field(default_factory=dict)
    """`ts_ns`, `track` and `frame` of moments at which the line is known; nothing if none is."""
    frames: list[str] = field(default_factory=list)  # What `frame` stands for.

    def add_spans(self, kind: SpanKind, name: Array, **columns: Array | int) -> int:
        """Append spans of one kind; returns the first's row. A number fills a column; ids that are not given are -1."""
        first, count = self.rows, len(name)
        whole: dict[str, Array | int] = {"correlation": -1, "external_id": -1, "name": name, **columns}
        whole["kind"] = np.full(count, _KINDS.index(kind), dtype=np.int8)
        for column, values in whole.items():
            chunk = np.full(count, values) if isinstance(values, int) else values
            self.spans.setdefault(column, []).append(chunk)
        self.rows += count
        return first

    def add_side(self, kind: SpanKind, first: int, columns: dict[str, Array]) -> None:
        """Append side-table values, one for each span from row `first` on."""
        table = self.side.setdefault(kind, {})
        count = len(next(iter(columns.values())))
        for name, values in {**columns, "row": np.arange(first, first + count, dtype=np.int64)}.items():
            table.setdefault(name, []).append(values)

    def add_collectives(self, rows: Array, columns: dict[str, Array]) -> None:
        """Append collective arguments of the spans at `rows`."""
        for name, values in {**columns, "row": rows}.items():
            self.collectives.setdefault(name, []).append(values)

    def absorb(self, other: Columns) -> None:
        """Append the columns of later events, recoded to our vocabularies. `other` must not be used afterwards."""
        host, device = self.host_tracks.adopted(other.host_tracks), self.device_tracks.adopted(other.device_tracks)
        recode = {name: self.texts[name].adopted(other.texts[name]) for name in TEXTS}
        recode |= {"name": self.names.adopted(other.names), "sync_kind": self.sync_kinds.adopted(other.sync_kinds)}
        on_device = [_KINDS[chunk[0]] in ON_DEVICE for chunk in other.spans.get("kind", ())]
        tracks = zip(other.spans.get("track", ()), on_device, strict=True)
        other.spans["track"] = [(device if there else host)[chunk] for chunk, there in tracks]
        tables = [(self.spans, other.spans), (self.collectives, other.collectives)]
        tables += [(self.side.setdefault(kind, {}), other.side[kind]) for kind in other.side]
        for ours, theirs in tables:
            for name, chunks in theirs.items():
                if name == "row":
                    chunks = [chunk + self.rows for chunk in chunks]
                elif name in recode:
                    chunks = [recode[name][chunk] for chunk in chunks]
                ours.setdefault(name, []).extend(chunks)
        self.thread_names |= other.thread_names
        self.process_name = self.process_name or other.process_name
        self.windows += other.windows
        self.unclassified += other.unclassified
        self.events += other.events
        self.rows += other.rows


def is_kind(codes: Array, kinds: Iterable[SpanKind]) -> npt.NDArray[np.bool_]:
    """Which of the kind codes are one of `kinds`."""
    found = np.zeros(len(codes), dtype=np.bool_)
    for kind in kinds:
        found |= codes == _KINDS.index(kind)
    return found


def matched(
    sources: IntArray, source_key: IntArray, targets: IntArray, target_key: IntArray
) -> tuple[IntArray, IntArray]:
    """(sources, targets), a pair for each target whose key is positive and a source's; of equal sources the first."""
    order = np.argsort(source_key, kind="stable")
    keys = source_key[order]
    at = np.searchsorted(keys, target_key)
    hit = (target_key > 0) & (at < len(keys))
    hit[hit] = keys[at[hit]] == target_key[hit]
    return sources[order[at[hit]]], targets[hit]


def printable(text: str) -> str:
    """The text with every character that could act on a terminal or a page's layout shown as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
