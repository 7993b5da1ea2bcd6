"""torch.profiler's chrome-trace JSON (Kineto), of every age and back end, plain or gzip, as a Rank.

Events are decoded in batches and their fields moved into columns at once, so that neither the text nor the events are
ever held whole. Of other top-level keys only named ones are read: traces have carried whole environments. Categories
and keys: kineto libkineto/src/output_json.cpp, CuptiActivity.h, ActivityType.h; the names before mid-2022 from traces
of that time.
"""

import hashlib
import multiprocessing
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import chain
from typing import Any

from diagnose.source import stream
from diagnose.source.assemble import assemble
from diagnose.source.base import Damage, Header, InputError
from diagnose.source.collector import Workers, collect
from diagnose.source.columns import Columns, printable
from diagnose.source.document import TraceText
from diagnose.source.events import event_type
from diagnose.storage.remote import Place
from diagnose.trace.job import ProcessGroup
from diagnose.trace.model import Device, Rank

_TIMES_PAST_DOUBLE = re.compile(rb'"ts"\s*:\s*"?\d{16,}\.\d')
"""Unix microseconds with decimals (kineto of March to May 2024): more digits than a double holds."""


def claims(head: bytes) -> bool:
    """Whether a file that begins with `head` is JSON; whether it is a trace shows only on reading it."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def read(path: Place) -> Rank:
    """The rank in the file at `path`, as far as the file is sound. Raises InputError when nothing is."""
    damage, columns = Damage(), Columns()
    # Closed here: left to the garbage collector, it would wait for its thread wherever that happens to run.
    with closing(stream.pieces(path, damage)) as pieces:
        first = next(pieces, b"")
        exact = _TIMES_PAST_DOUBLE.search(first) is not None
        whole, gather = chain((first,), pieces), partial(collect, exact=exact)
        text = TraceText(whole, path, event_type(exact), gather, HEADER_KEYS, damage)
        with _workers(path, exact) as workers:
            for batch in text.batches(workers):
                columns.absorb(batch)
    if not columns.events:
        if damage.lost_events:
            raise InputError(f"{path} has no readable event: all {damage.lost_events:,} are damaged.")
        why = "Check that the profiler's schedule reached its active steps, and record again."
        raise InputError(f"{path} has no events. {why}")
    damage.unclassified = columns.unclassified
    return assemble(path, "kineto", _header(text.header, damage), columns, damage)


WORTH_WORKERS_BYTES = 64 << 20  # One process decodes it in 0.25 s, over twice what it takes to start others.
GZIP_RATIO = 12  # of Kineto's traces, typically
MOST_WORKERS = 4  # more wait for the process that puts their columns together, and each holds some 90 MB


def _workers(path: Place, exact: bool) -> AbstractContextManager[Workers | None]:
    """A context: decoding processes for a big file, if cores are to spare and this is none of them; else None."""
    size, cores = path.stat().st_size, os.cpu_count() or 1
    if size * GZIP_RATIO < WORTH_WORKERS_BYTES or cores == 1 or multiprocessing.parent_process() is not None:
        return nullcontext()
    if size < WORTH_WORKERS_BYTES and stream.head(path, 2, raw=True) != stream.GZIP_MAGIC:
        return nullcontext()
    return Workers(min(cores, MOST_WORKERS), exact)


_VERSIONS = {
    "cuda_runtime_version": "cuda_runtime",
    "cuda_driver_version": "cuda_driver",
    "hip_runtime_version": "hip_runtime",
    "hip_driver_version": "hip_driver",
    "cupti_version": "cupti",
}
_VERSION = re.compile(r"\d[\d.]{0,23}")
_KEYS = ("deviceProperties", "computeProperties", "distributedInfo", "baseTimeNanoseconds", "host_name")
HEADER_KEYS = frozenset((*_KEYS, "roctracer_version", *_VERSIONS))  # That are read beside `traceEvents`.
MOST_GROUPS = 4096  # Process groups that are read of one rank.


def _header(raw: dict[str, Any], damage: Damage) -> Header:
    """The header by top-level JSON values; one of a wrong type counts as absent. `damage` notes a lost base time."""
    versions = {label: _version(raw[key]) for key, label in _VERSIONS.items() if key in raw}
    distributed = raw.get("distributedInfo")
    info: dict[str, Any] = distributed if isinstance(distributed, dict) else {}
    if "nccl_version" in info:
        versions["nccl"] = _version(info["nccl_version"])
    base = _count(raw.get("baseTimeNanoseconds"))
    if "baseTimeNanoseconds" in raw and base is None:
        damage.header_values_lost.append("baseTimeNanoseconds")
    listed, host = raw.get("deviceProperties") or raw.get("computeProperties"), raw.get("host_name")
    named = hashlib.blake2b(host.encode(errors="replace"), digest_size=6) if host and isinstance(host, str) else None
    return Header(
        devices=tuple(_device(k, one) for k, one in enumerate(_list(listed)) if isinstance(one, dict)),
        rank=_count(info.get("rank")),
        world_size=_count(info.get("world_size")),
        base_ns=base or 0,
        versions={label: version for label, version in versions.items() if version},
        rocm=any(key.startswith("hip_") for key in raw) or "roctracer_version" in raw,
        groups=tuple(_groups(_list(info.get("pg_config"))[:MOST_GROUPS])),
        machine=-1 if named is None else int.from_bytes(named.digest(), "big"),
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _groups(items: list[Any]) -> Iterator[ProcessGroup]:
    """The process groups in `pg_config`, without those that have no name or whose ranks are not all numbers."""
    for item in items:
        name, use, ranks = map(item.get, ("pg_name", "pg_desc", "ranks")) if isinstance(item, dict) else (None,) * 3
        if isinstance(name, str) and isinstance(ranks, list):
            known = tuple(number for rank in ranks if (number := _count(rank)) is not None)
            said = printable(use[:200]) if isinstance(use, str) and use != "undefined" else ""
            if len(known) == len(ranks):
                yield ProcessGroup(printable(name[:200]), said, known)


def _device(position: int, item: dict[str, Any]) -> Device:
    """A device by its entry in the list of devices, at `position`; what is missing is 0 or ""."""

    def number(*keys: str) -> int:
        return next((found for key in keys if (found := _integer(item.get(key))) is not None), 0)

    name = item.get("name")
    threads = number("maxThreadsPerMultiprocessor", "maxThreadsPerMultiProcessor")
    multiprocessors = number("numSms", "multiProcessorCount", "maxComputeUnits")
    if not multiprocessors and 0 < threads < 512:
        # torch 2.13's Python writer (profiler/_chrome_trace_export.py) puts the SM count there and omits numSms.
        multiprocessors, threads = threads, 0
    index = _integer(item.get("id"))
    return Device(
        index=position if index is None else index,
        name=printable(name[:200]) if isinstance(name, str) else "",
        memory_bytes=number("totalGlobalMem"),
        multiprocessors=multiprocessors,
        compute_capability=(number("computeMajor", "major"), number("computeMinor", "minor")),
        max_threads_per_multiprocessor=threads,
        warp_size=number("warpSize"),
    )


def _integer(value: object) -> int | None:
    """The value as an int, also a number in text; None if it is none or does not fit 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << 63 else None


def _count(value: object) -> int | None:
    """The value as an int from 0 to below 2^62 (the sum of two fits in 64 bits); None if it is none."""
    number = _integer(value)
    return number if number is not None and 0 <= number < 1 << 62 else None


def _version(value: object) -> str:
    """The version as text; empty unless it is made of digits and dots (it goes into reports)."""
    number = _integer(value) if isinstance(value, int) else None
    if number is not None and 1000 <= number < 1_000_000:  # CUDA: 1000 * major + 10 * minor
        return f"{number // 1000}.{number % 1000 // 10}"
    if number is not None and number >= 10_000_000:  # HIP: 10^7 * major + 10^5 * minor + patch
        return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
    text = str(value)
    return text if _VERSION.fullmatch(text) else ""
