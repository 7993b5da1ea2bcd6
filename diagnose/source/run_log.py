"""Reads what `diagnose watch` writes: `rankN.watch`, and `rankN.watch.open` of a run that has not ended or was killed.

A file is records one after the other, each behind the bytes D1 A9, its length and its CRC-32 (both 32 bits, little
endian), compressed by zlib. Each is a JSON array; docs/watching.md tells their fields. What is damaged is passed over:
the next record begins at the next such bytes.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec.structs import astuple

from diagnose.source.base import InputError
from diagnose.trace.run_log import COLUMNS, Column, Count, EpochTime, Gauge, LoadingLog, OutlierStep, RunLog, Window

MAGIC, HEADER = b"\xd1\xa9", struct.Struct("<2sII")
VERSION = 1
MOST_FILE_BYTES, MOST_RECORD_BYTES, MOST_RECORDS = 256_000_000, 1_000_000, 100_000
"""Beyond which nothing is read: a log has 1 MB for each 100,000 steps, and a record some kB (our choice)."""

_NAME = re.compile(r"rank(\d{1,7})\.watch\Z")
_ATTEMPT = re.compile(r"rank\d{1,7}\.attempt-(\d{1,7})\.watch\Z")

Short: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]
Row = tuple[Count, ...]


class _Record(msgspec.Struct, frozen=True, array_like=True):
    pass


class _Begin(_Record, frozen=True, tag="begin"):
    version: int
    rank: Count
    world_size: Count
    pid: Count
    started_unix_ns: Count
    columns: tuple[Short, ...]
    first: Row


class _Steps(_Record, frozen=True, tag="steps"):
    rows: tuple[Row, ...]


class _Column(msgspec.Struct, frozen=True, array_like=True):
    count: Count
    sum_ns: Count
    least_ns: Count
    most_ns: Count
    buckets: tuple[Count, ...]


class _Outliers(msgspec.Struct, frozen=True, array_like=True):
    count: Count
    excess_ns: Count
    longest: tuple[Row, ...]
    gaps: dict[Count, Count]


class _Window(_Record, frozen=True, tag="window"):
    number: Count
    first_step: Count
    steps: Count
    began_ns: Count
    ended_ns: Count
    columns: dict[Short, _Column]
    outliers: _Outliers
    epochs: tuple[EpochTime, ...]
    more_epochs: Count
    gauges: dict[Short, Gauge]


class _Open(_Record, frozen=True, tag="open"):
    now_ns: Count
    last: Row
    steps_by: Short | None
    window: _Window
    loading: LoadingLog | None = None


class _End(_Record, frozen=True, tag="end"):
    how: Short
    ended_ns: Count
    last: Row
    steps_by: Short | None
    files: tuple[Short, ...]
    loading: LoadingLog | None = None


_Any = _Begin | _Steps | _Window | _Open | _End

WHOLE = ("step", "save", "evaluation", "recording", "outside")  # Columns that add up to the time.


def logs_in(folder: Path) -> list[Path]:
    """The logs of a run, in the order of their ranks; none where there is no such folder."""
    try:
        numbers = [(int(found[1]), path) for path in folder.iterdir() if (found := _NAME.match(path.name))]
    except OSError:
        return []
    return [path for _, path in sorted(numbers)]


def earlier_attempts(path: Path) -> list[Path]:
    """Logs of earlier processes of the same rank, which ended before the log at `path` began, in order."""
    beside = path.parent.glob(f"{path.name.removesuffix('.watch')}.attempt-*.watch")
    numbers = [(int(found[1]), one) for one in beside if (found := _ATTEMPT.match(one.name))]
    return [one for _, one in sorted(numbers)]


def read(path: Path) -> RunLog:
    """The log of a rank, as far as it is readable. Raises InputError if its first record is missing or too new."""
    damage = [0]
    try:
        records = list(_records(path, damage))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    begin = next((one for one in records if isinstance(one, _Begin)), None)
    if begin is None:
        raise InputError(f"{path} is not a run log, or its beginning is missing. Watch the run again.")
    if begin.version != VERSION:
        raise InputError(f"{path} has format {begin.version}, but this version reads {VERSION}. Update diagnose.")
    end = next((one for one in records if isinstance(one, _End)), None)
    by_number = {one.number: one for one in records if isinstance(one, _Window)}
    current: _Open | None = None
    with suppress(OSError):
        unfinished = list(_records(path.with_name(f"{path.name}.open"), damage))
        current = next((one for one in unfinished if isinstance(one, _Open)), None)
    if end is None and current is not None and current.window.number not in by_number:
        by_number[current.window.number] = current.window
    else:
        current = None
    windows = tuple(_in_order(by_number, damage))
    latest = end or current
    known_ns = windows[-1].ended_ns if windows else sum(begin.first[:1])
    length_ns = max(known_ns, 0 if end is None else end.ended_ns, 0 if current is None else current.now_ns)
    return RunLog(
        rank=begin.rank,
        world_size=max(begin.world_size, 1),
        started_unix_ns=begin.started_unix_ns,
        steps_by=None if latest is None else latest.steps_by,
        ended=None if end is None else end.how,
        length_ns=length_ns,
        start=_named(begin.columns, begin.first),
        windows=windows,
        last={} if latest is None else _named(begin.columns, latest.last),
        files=() if end is None else end.files,
        damaged=damage[0],
        first_steps=tuple(
            _named(begin.columns, row[1:]) for record in records if isinstance(record, _Steps) for row in record.rows
        ),
        loading=None if latest is None else latest.loading,
    )


def _named(columns: tuple[str, ...], row: Row) -> dict[str, int]:
    return {name: value for name, value in zip(columns, row, strict=False) if name in COLUMNS}


def _records(path: Path, damage: list[int]) -> Iterator[_Any]:
    """The valid records of a file; adds to `damage[0]` for each invalid one, but not for a last one that is cut off."""
    with path.open("rb") as file:
        content = file.read(MOST_FILE_BYTES)
        damage[0] += bool(file.read(1))
    at = count = 0
    decoder = msgspec.json.Decoder(_Any)
    while at < len(content) and count < MOST_RECORDS:
        found = content.find(MAGIC, at)
        if found != at:
            damage[0] += 1
        if found < 0 or found + HEADER.size > len(content):
            return
        _, length, checksum = HEADER.unpack_from(content, found)
        body = content[found + HEADER.size : found + HEADER.size + min(length, MOST_RECORD_BYTES)]
        if len(body) == length and zlib.crc32(body) == checksum:
            at, count = found + HEADER.size + length, count + 1
            with suppress(zlib.error, msgspec.MsgspecError, RecursionError):
                yield decoder.decode(zlib.decompressobj().decompress(body, MOST_RECORD_BYTES))
                continue
            damage[0] += 1
        else:
            at = found + 1
            if content.find(MAGIC, at) < 0:
                return  # Cut off where the process was killed.
            damage[0] += 1
    damage[0] += at < len(content)


def _in_order(by_number: dict[int, _Window], damage: list[int]) -> Iterator[Window]:
    """Windows by number; those that overlap the one before or do not add up are left out and counted as damage."""
    ended_ns = 0
    for number in sorted(by_number):
        one = by_number[number]
        step, length_ns = one.columns.get("step"), one.ended_ns - one.began_ns
        sums = sum(one.columns[name].sum_ns for name in WHOLE if name in one.columns)
        sound = step is None or step.count <= one.steps
        if one.began_ns < ended_ns or length_ns < 0 or sums > length_ns or not sound:
            damage[0] += 1
            continue
        ended_ns = one.ended_ns
        yield Window(
            one.first_step,
            one.steps,
            one.began_ns,
            one.ended_ns,
            {name: _column(*astuple(column)) for name, column in one.columns.items() if name in COLUMNS},
            one.outliers.count,
            one.outliers.excess_ns,
            tuple(sorted(one.outliers.gaps.items())),
            one.epochs,
            one.more_epochs,
            dict(one.gauges),
            tuple(OutlierStep(*row) for row in one.outliers.longest if len(row) == 3),  # Number, step, waiting.
        )


def _column(count: int, sum_ns: int, least_ns: int, most_ns: int, buckets: tuple[int, ...]) -> Column:
    return Column(count, sum_ns, least_ns, most_ns, tuple(zip(buckets[::2], buckets[1::2], strict=False)))
