"""Writes scalars for TensorBoard, a file for each rank.

The format is written here, as the package `tensorboard` brings TensorFlow's stand-ins, gRPC and a server along, and is
not needed to write: records are those of TFRecord (length, its masked CRC-32C, content, its masked CRC-32C), each of
them an Event message (tensorflow/core/util/event.proto, framework/summary.proto).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from diagnose.live.now import RankNow
from diagnose.trace.run_log import Window
from diagnose.watched.sketch import quantile_ns

SHARES = ("loader", "evaluation", "save", "collection", "compilation", "outside")
"""Columns whose share of the time is told."""

PHASES = ("forward", "backward", "optimizer")
"""Columns whose mean in a step is told."""


class TensorBoard:
    """A point for each window of the log: a second at first, later 1 % of the run."""

    name = "writing for TensorBoard"

    def __init__(self, folder: Path) -> None:
        """Made if it is not there. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._folder = folder
        self._files: dict[int, BinaryIO] = {}
        self._upto: dict[int, int] = {}
        """The last step that was written, by rank."""
        self._ranks: Sequence[RankNow] = ()

    def show(self, ranks: Sequence[RankNow]) -> None:
        """Write windows that are complete: all but the last one."""
        self._ranks = ranks
        for one in ranks:
            self._write(one, one.latest[:-1])

    def close(self) -> None:
        """Write the last windows."""
        try:
            for one in self._ranks:
                self._write(one, one.latest)
        finally:
            for file in self._files.values():
                file.close()

    def _write(self, one: RankNow, windows: Sequence[Window]) -> None:
        new = [window for window in windows if window.steps and window.first_step > self._upto.get(one.rank, 0)]
        for window in new:
            step = self._upto[one.rank] = window.first_step + window.steps - 1
            at_s = (one.run.started_unix_ns + window.ended_ns) / 1e9
            self._file(one.rank).write(record(event(at_s, step, dict(scalars(window)))))
        if new:
            self._file(one.rank).flush()

    def _file(self, rank: int) -> BinaryIO:
        if rank not in self._files:
            folder = self._folder / f"rank{rank}"
            folder.mkdir(exist_ok=True)
            name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
            self._files[rank] = (folder / name).open("xb")
            # Event: wall_time = 1, file_version = 3.
            self._files[rank].write(record(_double(1, time.time()) + _bytes(3, b"brain.Event:2")))
        return self._files[rank]


def scalars(window: Window) -> Iterator[tuple[str, float]]:
    """By tag, of a window."""
    step, length_ns = window.of("step"), window.ended_ns - window.began_ns
    if step.count:
        yield "step_seconds/mean", step.sum_ns / step.count / 1e9
        for name, share in (("median", 0.5), ("p99", 0.99)):
            if (ns := quantile_ns([step], share)) is not None:
                yield f"step_seconds/{name}", ns / 1e9
        for name in PHASES:
            yield f"mean_seconds/{name}", window.of(name).sum_ns / step.count / 1e9
    if length_ns:
        yield "steps_per_second", window.steps / length_ns * 1e9
        for name in SHARES:
            yield f"share/{name}", window.of(name).sum_ns / length_ns
    for name, gauge in window.gauges.items():
        yield f"process_and_device/{name}", gauge.mean


def event(at_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """Event: wall_time = 1, step = 2, summary = 5; Summary: value = 1; Value: tag = 1, simple_value = 2."""
    told = (_bytes(1, _bytes(1, tag.encode()) + struct.pack("<Bf", 2 << 3 | 5, one)) for tag, one in values.items())
    return _double(1, at_s) + b"\x10" + _varint(step) + _bytes(5, b"".join(told))


def _double(field: int, value: float) -> bytes:
    return struct.pack("<Bd", field << 3 | 1, value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def record(content: bytes) -> bytes:
    """As TFRecord has it."""
    length = struct.pack("<Q", len(content))
    return length + _masked_crc32c(length) + content + _masked_crc32c(content)


def _masked_crc32c(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc32c_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C = [_crc32c_of(byte) for byte in range(256)]
"""Of the polynomial of Castagnoli, reflected (RFC 3720, B.4)."""
