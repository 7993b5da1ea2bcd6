"""Scalars for TensorBoard, read back by a reader of this file: TFRecord, CRC-32C and Event from their descriptions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.live import tensorboard
from diagnose.live.now import rank_now
from diagnose.live.tensorboard import TensorBoard
from tests.live.drawn import MS, log, window

Point = tuple[float, int, dict[str, float]]


def crc32c(content: bytes) -> int:
    """By long division of the bits (RFC 3720, appendix B.4)."""
    left = 0xFFFFFFFF
    for byte in content:
        left ^= byte
        for _ in range(8):
            left = (left >> 1) ^ 0x82F63B78 if left % 2 else left >> 1
    return left ^ 0xFFFFFFFF


def masked(content: bytes) -> int:
    found = crc32c(content)
    return (((found >> 15) | (found << 17)) + 0xA282EAD8) % 2**32


def records(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    while content:
        (length, of_length) = struct.unpack_from("<QI", content)
        body = content[12 : 12 + length]
        assert len(body) == length
        assert of_length == masked(content[:8])
        assert struct.unpack_from("<I", content, 12 + length) == (masked(body),)
        yield body
        content = content[16 + length :]


def fields(message: bytes) -> Iterator[tuple[int, object]]:
    """Of a protocol buffer: varint, 64 bits, bytes, 32 bits."""

    def varint() -> int:
        nonlocal message
        value = shift = 0
        while True:
            byte, message = message[0], message[1:]
            value |= (byte % 128) << shift
            shift += 7
            if byte < 128:
                return value

    while message:
        key = varint()
        field, kind = key // 8, key % 8
        if kind == 0:
            yield field, varint()
            continue
        length = {1: 8, 5: 4}.get(kind) or varint()
        part, message = message[:length], message[length:]
        yield field, struct.unpack({1: "<d", 5: "<f"}[kind], part)[0] if kind in (1, 5) else part


def points(folder: Path) -> list[Point]:
    """Time, step and scalars of each event, behind that of the version."""
    (path,) = folder.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, *others = (dict(fields(one)) for one in records(path))
    assert first[3] == b"brain.Event:2"
    return [(one[1], one[2], dict(map(_scalar, _all(one[5])))) for one in others]  # type: ignore[misc, arg-type]


def _all(summary: bytes) -> list[bytes]:
    return [value for field, value in fields(summary) if field == 1 and isinstance(value, bytes)]


def _scalar(value: bytes) -> tuple[str, float]:
    found = dict(fields(value))
    tag, number = found[1], found[2]
    assert isinstance(tag, bytes)
    assert isinstance(number, float)
    return tag.decode(), number


def test_the_reader_knows_the_check_value_of_the_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert tensorboard.record(b"")[8:12] == struct.pack("<I", masked(bytes(8)))


def test_each_window_is_a_point_once_it_is_complete(tmp_path: Path) -> None:
    written = TensorBoard(tmp_path / "runs" / "one")
    windows = [window(at, waits_ns=at * MS, resident_bytes=8e8) for at in range(4)]
    written.show([rank_now(log(*windows[:2]))])
    folder = tmp_path / "runs" / "one" / "rank0"
    assert [step for _, step, _ in points(folder)] == [40]
    written.show([rank_now(log(*windows))])
    written.show([rank_now(log(*windows))])
    assert [step for _, step, _ in points(folder)] == [40, 80, 120]
    written.close()
    found = points(folder)
    assert [(at_s, step) for at_s, step, _ in found] == [(1_700_000_003.0 + k, 40 * (k + 1)) for k in range(4)]
    assert found[2][2] == pytest.approx(
        {
            "step_seconds/mean": 0.025,
            "step_seconds/median": 0.025,
            "step_seconds/p99": 0.025,
            "mean_seconds/forward": 0.004,
            "mean_seconds/backward": 0.0,
            "mean_seconds/optimizer": 0.0,
            "steps_per_second": 40.0,
            "share/loader": 0.08,
            "share/evaluation": 0.0,
            "share/save": 0.0,
            "share/collection": 0.0,
            "share/compilation": 0.0,
            "share/outside": 0.0,
            "process_and_device/resident_bytes": 8e8,
        }
    )


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    written = TensorBoard(tmp_path)
    written.show([rank_now(log(window(0))), rank_now(log(window(0), window(1), rank=7))])
    written.close()
    assert [len(points(tmp_path / name)) for name in ("rank0", "rank7")] == [1, 2]


def test_numbers_of_many_bytes(tmp_path: Path) -> None:
    values = {"a" * 300: 1.5}
    found = dict(fields(tensorboard.event(1.5, 10**12, values)))
    summary = found[5]
    assert isinstance(summary, bytes)
    assert (found[1], found[2], [_scalar(one) for one in _all(summary)]) == (1.5, 10**12, [*values.items()])


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Not a directory"):
        TensorBoard(tmp_path / "file" / "runs")
