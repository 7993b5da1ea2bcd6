"""torch.profiler's chrome-trace JSON (Kineto), of every age and back end, plain or gzip, as a Rank.

Events are decoded in batches and their fields moved into columns at once, so that neither the text nor the events are
ever held whole. Categories and keys: kineto libkineto/src/output_json.cpp, CuptiActivity.h, ActivityType.h; the names
before mid-2022 from traces of that time.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.source import stream
from diagnose.source.assemble import Recording, assemble
from diagnose.source.base import Damage, InputError
from diagnose.source.columns import ON_DEVICE, Array, Columns, Vocabulary
from diagnose.source.document import TraceText
from diagnose.source.events import Args, Event, finished, floats, ints, texts, times, triples
from diagnose.source.header import HEADER_KEYS, read_header
from diagnose.trace.enums import SpanKind
from diagnose.trace.model import Rank

_KINDS: dict[str, SpanKind] = {
    "cpu_op": SpanKind.OP,
    "Operator": SpanKind.OP,
    "hpu_op": SpanKind.OP,
    "user_annotation": SpanKind.ANNOTATION,
    "gpu_user_annotation": SpanKind.GPU_ANNOTATION,
    "kernel": SpanKind.KERNEL,
    "Kernel": SpanKind.KERNEL,
    "gpu_memcpy": SpanKind.MEMCPY,
    "Memcpy": SpanKind.MEMCPY,
    "gpu_memset": SpanKind.MEMSET,
    "Memset": SpanKind.MEMSET,
    "cuda_runtime": SpanKind.RUNTIME,
    "Runtime": SpanKind.RUNTIME,
    "xpu_runtime": SpanKind.RUNTIME,
    "mtia_runtime": SpanKind.RUNTIME,
    "glow_runtime": SpanKind.RUNTIME,
    "privateuse1_runtime": SpanKind.RUNTIME,
    "cuda_driver": SpanKind.DRIVER,
    "xpu_driver": SpanKind.DRIVER,
    "privateuse1_driver": SpanKind.DRIVER,
    "cuda_sync": SpanKind.SYNC,
    "xpu_sync": SpanKind.SYNC,
    "python_function": SpanKind.PYTHON,
    "overhead": SpanKind.OVERHEAD,
    "collective_comm": SpanKind.COLLECTIVE,
}
"""Event category -> kind. A category that is not here becomes OTHER."""

_CORRELATED = frozenset({SpanKind.RUNTIME, SpanKind.DRIVER, *ON_DEVICE})
"""Kinds whose events carry a correlation id."""

_PASSED_OVER = frozenset({"Trace", "cuda_event", "cuda_profiler_range"})
"""The recorder's own bookkeeping: no work of the program."""

_TIMES_PAST_DOUBLE = re.compile(rb'"ts"\s*:\s*"?\d{16,}\.\d')
"""Unix microseconds with decimals (kineto of March to May 2024): more digits than a double holds."""


class KinetoReader:
    """Reads torch.profiler traces. See `source.base.Reader`."""

    format = "kineto"

    def claims(self, path: Path, head: bytes) -> bool:
        """Any JSON text; what kind of JSON shows only on reading it."""
        return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")

    def read(self, path: Path) -> Rank:
        """The rank in the file at `path`, as far as the file is sound. Raises InputError when nothing is."""
        damage = Damage()
        pieces = stream.pieces(path, damage)
        first = next(pieces, b"")
        exact = _TIMES_PAST_DOUBLE.search(first) is not None
        event: type[Event[Any]] = Event[Decimal] if exact else Event[float | str]
        text = TraceText(_chain(first, pieces), path, event, HEADER_KEYS, damage)
        columns = _Collector(exact)
        for batch in text.batches():
            columns.add(batch)
        if not columns.events:
            raise InputError(
                f"{path} holds no events. If the run was profiled, check that the profiler's schedule reached its "
                "active steps, and record again."
            )
        header = read_header(text.header, damage)
        return assemble(
            Recording(
                path=path,
                format=self.format,
                events=columns.events,
                header=header,
                columns=columns.finish(),
                thread_names=columns.thread_names,
                damage=damage,
            )
        )


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


class _Collector:
    """Takes batches of events, keeps their columns."""

    def __init__(self, exact: bool) -> None:
        self.events = 0
        self.thread_names: dict[tuple[str, str], str] = {}
        self._exact = exact
        self._names = Vocabulary()
        self._host_tracks = Vocabulary()
        self._device_tracks = Vocabulary()
        self._texts = {
            name: Vocabulary({b"": 0}) for name in ("shapes", "dtypes", "stack", "operation", "group_ranks", "dtype")
        }
        self._columns = Columns()

    def add(self, batch: list[Event[Any]]) -> None:
        """Move the fields of a batch into columns."""
        self.events += len(batch)
        by_category: defaultdict[str, list[Event[Any]]] = defaultdict(list)
        for event in batch:
            phase = event.ph
            if phase == "X":
                by_category[event.cat].append(event)
            elif phase == "i" and event.name == "[memory]":
                by_category[event.name].append(event)
            elif phase == "M" and event.name == "thread_name":
                self.thread_names[str(event.pid), str(event.tid)] = str(event.args.name)
        for category, events in by_category.items():
            if category not in _PASSED_OVER:
                self._add_category(category, events)

    def finish(self) -> Columns:
        """The columns of all batches, with their vocabularies."""
        self._columns.names = self._names
        self._columns.host_tracks = self._host_tracks
        self._columns.device_tracks = self._device_tracks
        self._columns.texts = self._texts
        return self._columns

    def _add_category(self, category: str, events: list[Event[Any]]) -> None:
        kind = SpanKind.MEMORY if category == "[memory]" else _KINDS.get(category, SpanKind.OTHER)
        if category == "" and events[0].args.python_id is not None:
            kind = SpanKind.PYTHON
        args = [event.args for event in events]
        first = self._columns.add_spans(
            kind,
            name=self._names.codes(map(attrgetter("name"), events), len(events)),
            track=self._tracks(kind in ON_DEVICE, events, args),
            ts_ns=times(events, self._exact),
            dur_us=floats(events, "dur", 0.0),
            correlation=ints(args, "correlation", -1) if kind in _CORRELATED else np.full(len(events), -1),
            external_id=ints(args, "external_id_2021" if category == "Runtime" else "external_id", -1),
        )
        if kind in _SIDE_COLUMNS:
            self._add_side(kind, first, args)
        if kind in (SpanKind.KERNEL, SpanKind.OP) and any(map(attrgetter("operation"), args)):
            self._add_collectives(first, args)

    def _tracks(self, on_device: bool, events: list[Event[Any]], args: list[Args]) -> Array:
        rows: Iterable[tuple[object, ...]] = map(attrgetter("pid", "tid"), events)
        if not on_device:
            return self._host_tracks.codes(rows, len(events))
        streams = map(attrgetter("device", "stream"), args)
        return self._device_tracks.codes(map(operator.add, rows, streams), len(events))

    def _add_side(self, kind: SpanKind, first: int, args: list[Args]) -> None:
        side: dict[str, Array] = {}
        for name, (attribute, default) in _SIDE_COLUMNS[kind].items():
            if name in self._texts:
                side[name] = self._text(name, args, attribute)
            elif name in ("grid", "block"):
                side.update(triples(args, name))
            elif isinstance(default, float):
                side[name] = floats(args, attribute, default)
            else:
                side[name] = ints(args, attribute, default)
        if kind == SpanKind.OP:
            side["finished"] = finished(args)
            if not side["shapes"].any():  # code 0 is the empty text
                side["shapes"] = self._text("shapes", args, "shapes_2021")
        if kind == SpanKind.SYNC:
            side["sync_kind"] = self._columns.sync_kinds.codes((str(one.sync_kind) for one in args), len(args))
        self._columns.add_side(kind, first, side)

    def _text(self, name: str, args: list[Args], attribute: str) -> Array:
        return self._texts[name].codes(texts(args, attribute), len(args))

    def _add_collectives(self, first: int, args: list[Args]) -> None:
        at = [k for k, one in enumerate(args) if one.operation]
        some = [args[k] for k in at]
        side = {name: self._text(name, some, name) for name in ("operation", "group_ranks", "dtype")}
        side["group_size"] = ints(some, "group_size", -1)
        side["sequence"] = ints(some, "group_sequence", -1)
        side["in_elements"] = ints(some, "in_elements", -1)
        side["out_elements"] = ints(some, "out_elements", -1)
        self._columns.add_collectives(first + np.array(at, dtype=np.int64), side)


_SIDE_COLUMNS: dict[SpanKind, dict[str, tuple[str, Any]]] = {
    SpanKind.KERNEL: {
        "grid": ("grid", 0),
        "block": ("block", 0),
        "registers": ("registers", -1),
        "shared_bytes": ("shared_bytes", -1),
        "occupancy_percent": ("occupancy_percent", float("nan")),
        "graph_id": ("graph_id", 0),
    },
    SpanKind.MEMCPY: {"bytes": ("bytes", -1)},
    SpanKind.SYNC: {
        "stream": ("stream", -1),
        "wait_on_stream": ("wait_on_stream", -1),
        "wait_on_correlation": ("wait_on_correlation", -1),
    },
    SpanKind.OP: {
        "shapes": ("shapes", ""),
        "dtypes": ("dtypes", ""),
        "sequence": ("sequence", -1),
        "forward_thread": ("forward_thread", -1),
        "stack": ("stack", ""),
    },
    SpanKind.MEMORY: {
        "device_type": ("device_type", -1),
        "device": ("device_id", -1),
        "bytes": ("size", 0),
        "allocated_bytes": ("allocated_bytes", -1),
        "reserved_bytes": ("reserved_bytes", -1),
    },
}
"""Side-table columns per kind: attribute of `Args`, and what stands for "not recorded"."""
