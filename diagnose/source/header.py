"""The named top-level keys of a Kineto trace. Every other key is never read: traces have carried whole environments."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from diagnose.source.base import Damage
from diagnose.source.columns import printable
from diagnose.trace.job import ProcessGroup
from diagnose.trace.model import Device

_VERSIONS = {
    "cuda_runtime_version": "cuda_runtime",
    "cuda_driver_version": "cuda_driver",
    "hip_runtime_version": "hip_runtime",
    "hip_driver_version": "hip_driver",
    "cupti_version": "cupti",
}
HEADER_KEYS = frozenset(
    {
        "deviceProperties",
        "computeProperties",
        "distributedInfo",
        "baseTimeNanoseconds",
        "roctracer_version",
        "host_name",
    }
    | _VERSIONS.keys()
)


_VERSION = re.compile(r"\d[\d.]{0,23}")


class Header(Struct, frozen=True):
    """What a trace says of itself."""

    devices: tuple[Device, ...]
    rank: int | None
    world_size: int | None
    base_ns: int
    versions: dict[str, str]
    rocm: bool
    groups: tuple[ProcessGroup, ...] = ()
    machine: int = -1  # Tells machines apart, without the name of any; -1 unknown.


def read_header(raw: dict[str, Any], damage: Damage) -> Header:
    """The header from its raw JSON values; a value of the wrong type counts as absent, and is noted in `damage`."""
    versions = {label: _version(raw[key]) for key, label in _VERSIONS.items() if key in raw}
    distributed = raw.get("distributedInfo")
    info: dict[str, Any] = distributed if isinstance(distributed, dict) else {}
    if "nccl_version" in info:
        versions["nccl"] = _version(info["nccl_version"])
    base = _count(raw.get("baseTimeNanoseconds"))
    if "baseTimeNanoseconds" in raw and base is None:
        damage.header_values_lost.append("baseTimeNanoseconds")
    return Header(
        devices=tuple(_devices(raw.get("deviceProperties") or raw.get("computeProperties"))),
        rank=_count(info.get("rank")),
        world_size=_count(info.get("world_size")),
        base_ns=base or 0,
        versions={label: version for label, version in versions.items() if version},
        rocm=any(key.startswith("hip_") for key in raw) or "roctracer_version" in raw,
        groups=tuple(_groups(info.get("pg_config"))),
        machine=_machine(raw.get("host_name")),
    )


MOST_GROUPS = 4096  # Process groups that are read of one rank.


def _groups(value: object) -> Iterator[ProcessGroup]:
    for item in value[:MOST_GROUPS] if isinstance(value, list) else ():
        if not isinstance(item, dict):
            continue
        name, use, ranks = item.get("pg_name"), item.get("pg_desc"), item.get("ranks")
        if isinstance(name, str) and isinstance(ranks, list):
            numbers = [_count(rank) for rank in ranks]
            known = tuple(rank for rank in numbers if rank is not None)
            said = printable(use[:200]) if isinstance(use, str) and use != "undefined" else ""
            if len(known) == len(numbers):
                yield ProcessGroup(printable(name[:200]), said, known)


def _machine(name: object) -> int:
    if not isinstance(name, str) or not name:
        return -1
    return int.from_bytes(hashlib.blake2b(name.encode(errors="replace"), digest_size=6).digest(), "big")


def _devices(value: object) -> list[Device]:
    if not isinstance(value, list):
        return []
    return [_device(k, item) for k, item in enumerate(value) if isinstance(item, dict)]


def _device(position: int, item: dict[str, Any]) -> Device:
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
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << 63 else None


def _count(value: object) -> int | None:
    """An int that cannot be negative, and is below 2^62: two of them fit in 64 bits."""
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
