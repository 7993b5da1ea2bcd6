"""Batches of Kineto events into columns. Free of pandas: this is what decoding processes run.

They are started by hand, not by multiprocessing, which would run the user's main script again in each (spawn) or copy
a process with threads (fork). A worker gets texts and gives back columns; texts that do not decode give None.
"""

from __future__ import annotations

import json
import operator
import os
import pickle
import re
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np

from diagnose.source.columns import ON_DEVICE, Array, Columns
from diagnose.source.events import Args, Event, event_type, finished, floats, ints, texts, times, triples
from diagnose.trace.enums import SpanKind
from diagnose.trace.kinds import host_kind

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

_CORRELATED = frozenset({SpanKind.RUNTIME, SpanKind.DRIVER, *ON_DEVICE})  # Kinds whose events carry a correlation id.

_PASSED_OVER = frozenset({"cuda_event", "cuda_profiler_range"})
"""The recorder's own bookkeeping: no work of the program."""


def collect(events: Sequence[Event[Any]], exact: bool) -> Columns:
    """The columns of some events; `exact` if their times are decimals."""
    columns = Columns(events=len(events))
    by_category: defaultdict[str, list[Event[Any]]] = defaultdict(list)
    for event in events:
        phase = event.ph
        if phase == "X":
            by_category[event.cat or _category(event)].append(event)
        elif phase == "i" and event.name == "[memory]":
            by_category[event.name].append(event)
        elif phase == "M" and event.name == "thread_name":
            columns.thread_names[str(event.pid), str(event.tid)] = str(event.args.name)
        elif phase == "M" and event.name == "process_name":
            columns.process_name = columns.process_name or str(event.args.name)
    columns.windows += [(event.ts, event.dur) for event in by_category.pop("Trace", ())]
    columns.unclassified = len(by_category[""])
    for category, group in by_category.items():
        if group and category not in _PASSED_OVER:
            _add(columns, category, group, exact)
    return columns


_OF_NAME = {SpanKind.OP: "cpu_op", SpanKind.ANNOTATION: "user_annotation", SpanKind.PYTHON: "python_function"}
_OF_NAME |= {SpanKind.RUNTIME: "cuda_runtime", SpanKind.DRIVER: "cuda_driver"}


def _category(event: Event[Any]) -> str:
    """Of an event that has none, from what else it says; empty where that is not enough.

    So wrote the profiler before Kineto (torch/autograd/profiler.py), and Kineto of 2021 its Python frames.
    """
    args = event.args
    if args.python_id is not None:
        return "python_function"
    if event.pid == "CUDA functions" or args.stream != -1:
        memory = re.match("(?i)mem(cpy|set)", event.name)
        return f"gpu_mem{memory[1].lower()}" if memory else "kernel"
    kind = host_kind(event.name)
    return _OF_NAME[kind] if kind else "user_annotation" * (event.pid == "CPU functions")


def _add(columns: Columns, category: str, events: list[Event[Any]], exact: bool) -> None:
    kind = SpanKind.MEMORY if category == "[memory]" else _KINDS.get(category, SpanKind.OTHER)
    args = [event.args for event in events]
    first = columns.add_spans(
        kind,
        name=columns.names.codes(map(attrgetter("name"), events), len(events)),
        track=_tracks(columns, kind, events, args),
        ts_ns=times(events, exact),
        dur_us=np.zeros(len(events)) if kind == SpanKind.MEMORY else floats(events, "dur", float("nan")),
        correlation=ints(args, "correlation", -1) if kind in _CORRELATED else np.full(len(events), -1),
        external_id=ints(args, "external_id_2021" if category == "Runtime" else "external_id", -1),
    )
    if kind in _SIDE_COLUMNS:
        side = _side(columns, kind, args)
        if kind == SpanKind.OP:
            side["scalars"] = _scalars(columns, events, args)
        columns.add_side(kind, first, side)
    if kind in (SpanKind.KERNEL, SpanKind.OP) and any(map(attrgetter("operation"), args)):
        _add_collectives(columns, first, args)


def _tracks(columns: Columns, kind: SpanKind, events: list[Event[Any]], args: list[Args]) -> Array:
    rows: Iterable[tuple[object, ...]] = map(attrgetter("pid", "tid"), events)
    if kind not in ON_DEVICE:
        return columns.host_tracks.codes(rows, len(events))
    streams = map(attrgetter("device", "stream"), args)
    return columns.device_tracks.codes(map(operator.add, rows, streams), len(events))


def _side(columns: Columns, kind: SpanKind, args: list[Args]) -> dict[str, Array]:
    side: dict[str, Array] = {}
    for name, (attribute, default) in _SIDE_COLUMNS[kind].items():
        if name in columns.texts:
            side[name] = _text(columns, name, args, attribute)
        elif name in ("grid", "block"):
            side.update(triples(args, name))
        elif isinstance(default, float):
            side[name] = floats(args, attribute, default)
        else:
            side[name] = ints(args, attribute, default)
    if kind == SpanKind.OP:
        side["finished"] = finished(args)
        if not side["shapes"].any():  # code 0 is the empty text
            side["shapes"] = _text(columns, "shapes", args, "shapes_2021")
    if kind == SpanKind.SYNC:
        side["sync_kind"] = columns.sync_kinds.codes((str(arg.sync_kind) for arg in args), len(args))
    return side


def _text(columns: Columns, name: str, args: Sequence[Args], attribute: str) -> Array:
    values = texts(args, attribute)
    return columns.texts[name].codes(values, len(values)) if values else np.zeros(len(args), dtype=np.int32)


class _BySize(dict[str, bool]):
    """Whether the numbers that an op takes say how much it computes."""

    _names = re.compile(r"aten::\w*(attention|conv|embedding|norm|pool|softmax)\w*|aten::(sum|mean|var)")

    def __missing__(self, name: str) -> bool:
        return self.setdefault(name, self._names.fullmatch(name) is not None)


_BY_SIZE = _BySize()


def _scalars(columns: Columns, events: Sequence[Event[Any]], args: Sequence[Args]) -> Array:
    """Only of ops that compute by them: those of others are many, and nothing asks for them."""
    found = np.zeros(len(args), dtype=np.int32)
    chosen = np.flatnonzero(np.fromiter(map(_BY_SIZE.__getitem__, map(attrgetter("name"), events)), np.bool_))
    found[chosen] = _text(columns, "scalars", [args[at] for at in chosen.tolist()], "scalars")
    return found


_COLLECTIVE_TEXTS = ("operation", "group", "group_description", "group_ranks", "dtype")


def _add_collectives(columns: Columns, first: int, args: list[Args]) -> None:
    at = [k for k, one in enumerate(args) if one.operation]
    some = [args[k] for k in at]
    side = {name: _text(columns, name, some, name) for name in _COLLECTIVE_TEXTS}
    side["group_size"] = ints(some, "group_size", -1)
    side["sequence"] = ints(some, "group_sequence", -1)
    to_rank, from_rank = ints(some, "to_rank", -1), ints(some, "from_rank", -1)
    side["peer"] = np.where(to_rank >= 0, to_rank, from_rank)
    side["in_elements"] = ints(some, "in_elements", -1)
    side["out_elements"] = ints(some, "out_elements", -1)
    columns.add_collectives(first + np.array(at, dtype=np.int64), side)


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
        "strides": ("strides", ""),
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


_LENGTH = struct.Struct("<Q")
_PIPE_BYTES = 1 << 20  # the most that Linux gives without privileges; elsewhere the size is not changed
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from diagnose.source.collector import serve; serve()"
)


class Workers:
    """A context: leaving it ends the processes."""

    def __init__(self, count: int, exact: bool) -> None:
        """`exact` as in `collector.collect`."""
        self.count = count
        command = [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), "exact" if exact else "double"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy only moves data here
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pipesize=_PIPE_BYTES,
                env=environment,
            )
            for _ in range(count)
        ]
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="diagnose-decode")

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            with suppress(BrokenPipeError), process:  # closing flushes what a dead worker never took
                pass

    def submit(self, text: memoryview) -> Future[Columns | None]:
        """The columns of the events of a JSON list, without its brackets, some time.

        None if it does not decode, or the worker is gone.
        """
        return self._threads.submit(self._columns, text)

    def _columns(self, text: memoryview) -> Columns | None:
        process = self._idle.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            _send(process.stdin, b"[", text, b"]")
            reply = _receive(cast(BinaryIO, process.stdout))
            return pickle.loads(reply) if reply else None
        except OSError:
            return None
        finally:
            self._idle.put(process)


def _send(stream: object, *parts: bytes | memoryview) -> None:
    out = cast(BinaryIO, stream)
    out.write(_LENGTH.pack(sum(map(len, parts))))
    out.writelines(parts)
    out.flush()


def _receive(stream: BinaryIO) -> bytes:
    """The next message; empty at the end of the stream, also within a message."""
    head = stream.read(_LENGTH.size)
    size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    message = stream.read(size)
    return message if len(message) == size else b""


def serve() -> None:
    """Run a worker: texts on standard input, pickled columns on standard output, until the input ends."""
    exact = sys.argv[2] == "exact"
    decode = msgspec.json.Decoder(list[event_type(exact)]).decode  # type: ignore[misc]
    while text := _receive(sys.stdin.buffer):
        reply = b""
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            reply = pickle.dumps(collect(decode(text), exact), protocol=5)
        _send(sys.stdout.buffer, reply)
