"""Processes that decode batches of events side by side.

They are started by hand, not by multiprocessing, which would run the user's main script again in each (spawn) or copy
a process with threads (fork). A worker gets texts and gives back columns; texts that do not decode give None.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import BinaryIO, cast

import msgspec

from diagnose.source.collector import collect
from diagnose.source.columns import Columns
from diagnose.source.events import event_type

_LENGTH = struct.Struct("<Q")
_PIPE_BYTES = 1 << 20  # the most that Linux gives without privileges; elsewhere the size is not changed
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from diagnose.source.workers import serve; serve()"


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
