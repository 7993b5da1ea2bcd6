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
from functools import lru_cache
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np

from diagnose.source.columns import ON_DEVICE, Array, Columns
from diagnose.source.events import NO_ARGS, Args, Event, event_type, finished, floats, ints, texts, times, triples
from diagnose.trace.enums import SpanKind
from diagnose.trace.kinds import Activity, activity

_RUNTIMES = ("cuda_runtime", "Runtime", "xpu_runtime", "mtia_runtime", "glow_runtime", "privateuse1_runtime")
_CATEGORIES = {
    SpanKind.OP: ("cpu_op", "Operator", "hpu_op"),
    SpanKind.ANNOTATION: ("user_annotation",),
    SpanKind.GPU_ANNOTATION: ("gpu_user_annotation",),
    SpanKind.KERNEL: ("kernel", "Kernel"),
    SpanKind.MEMCPY: ("gpu_memcpy", "Memcpy"),
    SpanKind.MEMSET: ("gpu_memset", "Memset"),
    SpanKind.RUNTIME: _RUNTIMES,
    SpanKind.DRIVER: ("cuda_driver", "xpu_driver", "privateuse1_driver"),
    SpanKind.SYNC: ("cuda_sync", "xpu_sync"),
    SpanKind.PYTHON: ("python_function",),
    SpanKind.OVERHEAD: ("overhead",),
    SpanKind.COLLECTIVE: ("collective_comm",),
    SpanKind.MEMORY: ("[memory]",),
}
_KINDS = {category: kind for kind, categories in _CATEGORIES.items() for category in categories}
"""Event category -> kind. A category that is not here becomes OTHER."""

_CORRELATED = frozenset({SpanKind.RUNTIME, SpanKind.DRIVER, *ON_DEVICE})  # Kinds whose events carry a correlation id.

_PASSED_OVER = frozenset({"cuda_event", "cuda_profiler_range"})  # Bookkeeping: no work of the program.


def collect(events: Sequence[Event[Any]], exact: bool) -> Columns:
    """Spans, [memory] instants and process and thread names as columns; `exact` if times are decimals."""
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


def _category(event: Event[Any]) -> str:
    """The category of an event that has none, by its arguments and name; "" where these do not tell.
    So wrote the profiler before Kineto (torch/autograd/profiler.py), and Kineto of 2021 its Python frames."""
    args = event.args
    if args.python_id is not None:
        return "python_function"
    if event.pid == "CUDA functions" or args.stream != -1:
        memory = re.match("(?i)mem(cpy|set)", event.name)
        return f"gpu_mem{memory[1].lower()}" if memory else "kernel"
    return named_category(event.name) or "user_annotation" * (event.pid == "CPU functions")


_BEGINNINGS = {
    "cuda_runtime": re.compile("(cuda|hip)[A-Z]"),
    "cuda_driver": re.compile("cu[A-Z]"),
    "python_function": re.compile(r"<built-in |nn\.Module: |[^(]*\(\d+\): "),
    # A word in small letters is an op: so were ops called before PyTorch 1.6.
    "cpu_op": re.compile(r"\w+::(\w|~)|\w+Backward\d*\Z|record_param_comms\Z|[a-z0-9_]+_?\Z"),
}


@lru_cache(4096)
def named_category(name: str) -> str:
    """The category of a host span, by its name; "" where that does not tell."""
    if activity(name) is not Activity.OTHER:
        return "user_annotation"
    return next((category for category, pattern in _BEGINNINGS.items() if pattern.match(name)), "")


def _add(columns: Columns, category: str, events: list[Event[Any]], exact: bool) -> None:
    """Add events of one category to the columns: spans, rows of the kind's side table if it has one, collectives."""
    kind = _KINDS.get(category, SpanKind.OTHER)
    args = [event.args for event in events]
    first = columns.add_spans(
        kind,
        name=columns.names.codes(map(attrgetter("name"), events), len(events)),
        track=_tracks(columns, kind, events, args),
        ts_ns=times(events, exact),
        dur_us=np.zeros(len(events)) if kind == SpanKind.MEMORY else floats(events, "dur", float("nan")),
        correlation=ints(args, "correlation", -1) if kind in _CORRELATED else -1,
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
    """Codes of the tracks that events lie on: (process, thread), on the device also (device, stream)."""
    rows: Iterable[tuple[object, ...]] = map(attrgetter("pid", "tid"), events)
    if kind not in ON_DEVICE:
        return columns.host_tracks.codes(rows, len(events))
    streams = map(attrgetter("device", "stream"), args)
    return columns.device_tracks.codes(map(operator.add, rows, streams), len(events))


def _side(columns: Columns, kind: SpanKind, args: list[Args]) -> dict[str, Array]:
    """Columns of the kind's own table, by name, from the events' arguments."""
    side: dict[str, Array] = {}
    for name in _SIDE_COLUMNS[kind]:
        unknown = getattr(NO_ARGS, name)
        if name in columns.texts:
            side[name] = _text(columns, name, args, name)
        elif name in ("grid", "block"):
            side.update(triples(args, name))
        else:
            numbers = floats(args, name, unknown) if isinstance(unknown, float) else ints(args, name, unknown)
            side[_RENAMED.get(name, name)] = numbers
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
    """By the name of an op, whether its scalar inputs (kernel size, dimension) say how much it computes."""

    _names = re.compile(r"aten::\w*(attention|conv|embedding|norm|pool|softmax)\w*|aten::(sum|mean|var)")

    def __missing__(self, name: str) -> bool:
        return self.setdefault(name, self._names.fullmatch(name) is not None)


_BY_SIZE = _BySize()


def _scalars(columns: Columns, events: Sequence[Event[Any]], args: Sequence[Args]) -> Array:
    """Codes of the scalar inputs of ops whose cost depends on these; 0 for all others, to save memory."""
    found = np.zeros(len(args), dtype=np.int32)
    chosen = np.flatnonzero(np.fromiter(map(_BY_SIZE.__getitem__, map(attrgetter("name"), events)), np.bool_))
    found[chosen] = _text(columns, "scalars", [args[at] for at in chosen.tolist()], "scalars")
    return found


def _add_collectives(columns: Columns, first: int, args: list[Args]) -> None:
    """Add the arguments of those events that are collectives; `first` is the row of the first event."""
    at = [k for k, arg in enumerate(args) if arg.operation]
    calls = [args[k] for k in at]
    texts_of = ("operation", "group", "group_description", "group_ranks", "dtype")
    side = {name: _text(columns, name, calls, name) for name in texts_of}
    side |= {name: ints(calls, name, -1) for name in ("group_size", "in_elements", "out_elements")}
    side["sequence"] = ints(calls, "group_sequence", -1)
    to_rank, from_rank = ints(calls, "to_rank", -1), ints(calls, "from_rank", -1)
    side["peer"] = np.where(to_rank >= 0, to_rank, from_rank)
    columns.add_collectives(first + np.array(at, dtype=np.int64), side)


_SIDE_COLUMNS = {
    SpanKind.KERNEL: ("grid", "block", "registers", "shared_bytes", "occupancy_percent", "graph_id"),
    SpanKind.MEMCPY: ("bytes",),
    SpanKind.SYNC: ("stream", "wait_on_stream", "wait_on_correlation"),
    SpanKind.OP: ("shapes", "dtypes", "strides", "sequence", "forward_thread", "stack"),
    SpanKind.MEMORY: ("device_type", "device_id", "size", "allocated_bytes", "reserved_bytes"),
}
"""Attributes of `Args` that are columns of the side table of a kind: of that name, but for these two."""

_RENAMED = {"device_id": "device", "size": "bytes"}

_LENGTH = struct.Struct("<Q")
_PIPE_BYTES = 1 << 20  # the most that Linux gives without privileges; elsewhere the size is not changed
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from diagnose.source.collector import serve; serve()"
)


class Workers:
    """Processes that decode texts of events. A context: leaving it kills them."""

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
        """A future of the columns of `text`, the inside of a JSON list of events; of None if it cannot be decoded."""
        return self._threads.submit(self._columns, text)

    def _columns(self, text: memoryview) -> Columns | None:
        """Decode a JSON text in an idle process; None if the process has died or cannot decode it."""
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
    """Write a message: its length as 8 bytes, then its parts."""
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
