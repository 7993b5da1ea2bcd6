"""torch.profiler's chrome-trace JSON (Kineto), of every age and back end, plain or gzip, as a Rank.

Events are decoded in batches and their fields moved into columns at once, so that neither the text nor the events are
ever held whole. Categories and keys: kineto libkineto/src/output_json.cpp, CuptiActivity.h, ActivityType.h; the names
before mid-2022 from traces of that time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np

from diagnose.source import stream
from diagnose.source.assemble import Recording, assemble
from diagnose.source.base import Damage, InputError
from diagnose.source.columns import ON_DEVICE, Columns, Vocabulary
from diagnose.source.document import TraceText
from diagnose.source.header import HEADER_KEYS, read_header
from diagnose.trace.model import Rank
from diagnose.trace.schema import SpanKind

Time = TypeVar("Time")
Scalar = int | float | str | None
"""A number, or what stood in its place: strings, "inf", "<unsupported metadata type>"."""


class Args(msgspec.Struct, frozen=True, gc=False):
    """What is read of an event's `args`; every other key is passed over."""

    external_id: Scalar = msgspec.field(name="External id", default=-1)
    external_id_2021: Scalar = msgspec.field(name="external id", default=-1)
    correlation: Scalar = -1
    device: Scalar = -1
    stream: Scalar = -1
    bytes: Any = -1
    grid: Any = (0, 0, 0)
    block: Any = (0, 0, 0)
    registers: Scalar = msgspec.field(name="registers per thread", default=-1)
    shared_bytes: Any = msgspec.field(name="shared memory", default=-1)
    occupancy_percent: Scalar = msgspec.field(name="est. achieved occupancy %", default=float("nan"))
    graph_id: Scalar = msgspec.field(name="graph id", default=0)
    sequence: Scalar = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Scalar = msgspec.field(name="Fwd thread id", default=-1)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    shapes_2021: msgspec.Raw = msgspec.field(name="Input dims", default=msgspec.Raw(b""))
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    stack: Any = msgspec.field(name="Call stack", default="")
    finished: bool | str | None = True
    python_id: Any = msgspec.field(name="Python id", default=None)
    operation: Any = msgspec.field(name="Collective name", default="")
    dtype: Any = ""
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default="")
    group_size: Scalar = msgspec.field(name="Group size", default=-1)
    group_sequence: Scalar = msgspec.field(name="Seq", default=-1)
    in_elements: Scalar = msgspec.field(name="In msg nelems", default=-1)
    out_elements: Scalar = msgspec.field(name="Out msg nelems", default=-1)
    sync_kind: Any = msgspec.field(name="cuda_sync_kind", default="")
    wait_on_stream: Scalar = -1
    wait_on_correlation: Scalar = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    device_type: Scalar = msgspec.field(name="Device Type", default=-1)
    device_id: Scalar = msgspec.field(name="Device Id", default=-1)
    size: Scalar = msgspec.field(name="Bytes", default=0)
    allocated_bytes: Scalar = msgspec.field(name="Total Allocated", default=-1)
    reserved_bytes: Scalar = msgspec.field(name="Total Reserved", default=-1)
    name: Any = ""


NO_ARGS = Args()


class Event(msgspec.Struct, Generic[Time], gc=False):
    """One event of `traceEvents`. `ts` and `dur` are microseconds."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Time | None = None
    dur: Scalar = 0
    args: Args = NO_ARGS


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
        self._texts = {name: Vocabulary() for name in ("shapes", "dtypes", "stack", "operation", "group_ranks", "dtype")}
        self._columns = Columns()

    def add(self, batch: list[Event[Any]]) -> None:
        """Move the fields of a batch into columns."""
        self.events += len(batch)
        by_category: dict[str, list[Event[Any]]] = {}
        for event in batch:
            if event.ph == "X":
                if event.cat in by_category:
                    by_category[event.cat].append(event)
                else:
                    by_category[event.cat] = [event]
            elif event.ph == "i" and event.name == "[memory]":
                by_category.setdefault("[memory]", []).append(event)
            elif event.ph == "M" and event.name == "thread_name":
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
        on_device = kind in ON_DEVICE
        tracks = self._device_tracks if on_device else self._host_tracks
        key = attrgetter("pid", "tid", "args.device", "args.stream") if on_device else attrgetter("pid", "tid")
        external_id = "args.external_id_2021" if category == "Runtime" else "args.external_id"
        first = self._columns.add_spans(
            kind,
            name=self._names.codes(map(attrgetter("name"), events), len(events)),
            track=tracks.codes(map(key, events), len(events)),
            ts_ns=self._times(events),
            dur_us=_floats(events, "dur", 0.0),
            correlation=_ints(events, "args.correlation", -1),
            external_id=_ints(events, external_id, -1),
        )
        if kind in _SIDE_COLUMNS:
            self._add_side(kind, first, events)
        if kind == SpanKind.KERNEL or (kind == SpanKind.OP and any(e.args.operation for e in events)):
            self._add_collectives(first, events)

    def _times(self, events: list[Event[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
        """Start of each event. float64 us, or int64 ns when the text holds more than a double can."""
        if not self._exact:
            return _floats(events, "ts", float("nan"))
        try:
            return np.fromiter((int(event.ts * 1000) for event in events), np.int64, len(events))
        except (TypeError, ValueError, OverflowError):
            return np.array([_number(_thousandfold(event.ts), int, -1) for event in events], dtype=np.int64)

    def _add_side(self, kind: SpanKind, first: int, events: list[Event[Any]]) -> None:
        side: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
        for name, (path, default) in _SIDE_COLUMNS[kind].items():
            if name in self._texts:
                side[name] = self._texts[name].codes(_texts(events, path), len(events))
            elif name in ("grid", "block"):
                side.update(_triples(events, name))
            elif isinstance(default, float):
                side[name] = _floats(events, path, default)
            else:
                side[name] = _ints(events, path, default)
        if kind == SpanKind.OP:
            finished = map(_FINISHED.__getitem__, map(attrgetter("args.finished"), events))
            side["finished"] = np.fromiter(finished, np.bool_, len(events))
            if not side["shapes"].any():
                side["shapes"] = self._texts["shapes"].codes(_texts(events, "args.shapes_2021"), len(events))
        if kind == SpanKind.SYNC:
            side["sync_kind"] = self._columns.sync_kinds.codes((str(e.args.sync_kind) for e in events), len(events))
        self._columns.add_side(kind, first, side)

    def _add_collectives(self, first: int, events: list[Event[Any]]) -> None:
        at = [k for k, event in enumerate(events) if event.args.operation]
        if not at:
            return
        some = [events[k] for k in at]
        side = {
            name: self._texts[name].codes(_texts(some, f"args.{name}"), len(some))
            for name in ("operation", "group_ranks", "dtype")
        }
        side["group_size"] = _ints(some, "args.group_size", -1)
        side["sequence"] = _ints(some, "args.group_sequence", -1)
        side["in_elements"] = _ints(some, "args.in_elements", -1)
        side["out_elements"] = _ints(some, "args.out_elements", -1)
        self._columns.add_collectives(first + np.array(at, dtype=np.int64), side)


_SIDE_COLUMNS: dict[SpanKind, dict[str, tuple[str, Any]]] = {
    SpanKind.KERNEL: {
        "grid": ("args.grid", 0),
        "block": ("args.block", 0),
        "registers": ("args.registers", -1),
        "shared_bytes": ("args.shared_bytes", -1),
        "occupancy_percent": ("args.occupancy_percent", float("nan")),
        "graph_id": ("args.graph_id", 0),
    },
    SpanKind.MEMCPY: {"bytes": ("args.bytes", -1)},
    SpanKind.SYNC: {
        "stream": ("args.stream", -1),
        "wait_on_stream": ("args.wait_on_stream", -1),
        "wait_on_correlation": ("args.wait_on_correlation", -1),
    },
    SpanKind.OP: {
        "shapes": ("args.shapes", ""),
        "dtypes": ("args.dtypes", ""),
        "sequence": ("args.sequence", -1),
        "forward_thread": ("args.forward_thread", -1),
        "stack": ("args.stack", ""),
    },
    SpanKind.MEMORY: {
        "device_type": ("args.device_type", -1),
        "device": ("args.device_id", -1),
        "bytes": ("args.size", 0),
        "allocated_bytes": ("args.allocated_bytes", -1),
        "reserved_bytes": ("args.reserved_bytes", -1),
    },
}
"""Side-table columns per kind: attribute of the event, and what stands for "not recorded"."""


class _Finished(dict[object, bool]):
    def __missing__(self, value: object) -> bool:
        return True


_FINISHED = _Finished({False: False, "false": False})


def _thousandfold(value: object) -> object:
    return value * 1000 if isinstance(value, Decimal) else value


def _texts(events: list[Event[Any]], path: str) -> Iterable[bytes | str]:
    """Texts of an attribute: raw JSON as bytes, which `Vocabulary.labels` decodes once per distinct value."""
    as_text: Callable[[Any], bytes | str] = bytes if path in _RAW else str
    return map(as_text, map(attrgetter(path), events))


_RAW = ("args.shapes", "args.shapes_2021", "args.dtypes")


def _floats(events: list[Event[Any]], path: str, default: float) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return np.fromiter(map(attrgetter(path), events), np.float64, len(events))
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value, float, default) for value in map(attrgetter(path), events)], dtype=np.float64)


def _ints(events: list[Event[Any]], path: str, default: int) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return np.fromiter(map(attrgetter(path), events), np.int64, len(events))
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value, int, default) for value in map(attrgetter(path), events)], dtype=np.int64)


def _triples(events: list[Event[Any]], name: str) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    values = list(map(attrgetter(f"args.{name}"), events))
    try:
        table = np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        table = np.zeros((0, 0), dtype=np.int64)
    if table.shape != (len(values), 3):
        table = np.array([_triple(value) for value in values], dtype=np.int64)
    table = np.clip(table, 0, np.iinfo(np.int32).max)
    return {f"{name}_{axis}": table[:, k] for k, axis in enumerate("xyz")}


def _triple(value: object) -> tuple[int, int, int]:
    if isinstance(value, (list, tuple)) and len(value) == 3:
        return tuple(_number(part, int, 0) for part in value)  # type: ignore[return-value]
    return (0, 0, 0)


N = TypeVar("N", int, float)


def _number(value: object, kind: Callable[[Any], N], default: N) -> N:
    try:
        number = kind(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        return default
    return number if -(1 << 63) <= number < (1 << 63) else default
