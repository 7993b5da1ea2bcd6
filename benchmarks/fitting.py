"""What ops of a kind reach on a device, fitted to what they took: in benchmarks/rates, and in recordings.

An op takes max(flops / (share x peak), bytes / (0.9 x bandwidth)) + a fixed time, a memory-bound one
bytes / (share x bandwidth) + a fixed time. `share` and the fixed time of each kind of op are those with the least
error, the sum of median and mean of |log(said / true)|; the range has 80 % of what is left.

What recordings tell is kept of kinds with `FEWEST_RECORDED` ops, where it says of ops in other recordings of the device
what they take with less error than the shares of an H100 do. As these are few trainings, its range is widened as that
of other devices is.
"""

import gzip
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.recorded_ops import SHORTEST_NS, Kind, Recorded, Timed
from diagnose.costs.book import FIXED_NS as MOVED_FIXED_NS
from diagnose.costs.known import BANDWIDTH, ELSEWHERE, MEASURED_ON, Family, Grade, Known, grade_of, known, table
from diagnose.trace import hardware, kinds
from diagnose.trace.costs import DTYPE_BYTES
from diagnose.trace.hardware import Peaks

FloatArray = npt.NDArray[np.float64]
RATES = Path(__file__).with_name("rates")
DEVICES = {"nvidia_h100_80gb_hbm3": hardware.H100}  # Files in benchmarks/rates, and what they are of.

SHARES = np.arange(0.02, 1.001, 0.01)
FIXED_NS = [0, 1_000, 2_000, 4_000, 6_000, 10_000, 16_000, 25_000]
MOVED_NS = list(range(500, 8_001, 500))  # Fixed times that are tried: of ops that multiply, and of memory-bound ones.
FEWEST = 4  # Ops that tell a kind, as they were measured for that.
FEWEST_RECORDED = 10  # Distinct ops of `SHORTEST_NS` that do in recordings.
RATES_SOURCE = "benchmarks/rates"


_MOVING = {
    ("chain", "compiled"): (Family.CHAIN, "", Grade.ANY),
    ("copy", "pinned_on_device_clock"): (Family.COPY, "", Grade.ANY),
    ("optimizer", "fused"): (Family.OPTIMIZER, "fp32", Grade.ANY),
}
"""What is bound by what it moves, by family of row, and implementation or op."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What a file of rates has timed, without rows that have a fault."""
    rows: list[dict[str, Any]] = msgspec.json.decode(gzip.decompress(path.read_bytes()))["rows"]
    return [row for row in rows if _took_us(row) and not row.get("note")]


def _took_us(row: dict[str, Any]) -> float:
    """What the device took: of copies the time between two events."""
    return float(row["median_us"] if row["op"] == "pinned_on_device_clock" else row.get("device_busy_us") or 0.0)


def kinds_of(rows: list[dict[str, Any]]) -> dict[Kind, list[Timed]]:
    """Rows by kind of op, type and grade."""
    found = defaultdict[Kind, list[Timed]](list)
    for kind, timed in _kinds(rows):
        found[kind].append(timed)
    return dict(found)


def _kinds(rows: list[dict[str, Any]]) -> Iterator[tuple[Kind, Timed]]:
    forward = {_key(row): row for row in rows if row["extra"].get("way") == "forward"}
    for row in rows:
        way, math = row["extra"].get("way"), row["math"]
        timed = Timed(row["flop"], row["bytes"], _took_us(row) * 1e3)
        if row["family"] == "gemm":
            inner = row["shape"][2:4] if row["op"] == "bmm" else row["shape"][1:3]
            yield (Family.PRODUCT, math, grade_of(inner, DTYPE_BYTES[math])), timed
        elif row["family"] == "conv" and row["extra"]["groups"] == 1 and not row["extra"]["benchmark"]:
            # Kernels that change the layout are none of the convolution's: without them both layouts take as long.
            own_us = sum(us for name, _, us in row["kernels"] if kinds.kernel_kind(name) in kinds.MATMULS)
            if own_us:
                way_of = Grade.FORWARD if way == "forward" else Grade.BACKWARD
                yield (Family.CONVOLUTION, math, way_of), replace(timed, took_ns=own_us * 1e3)
        elif row["op"] == "sdpa" and math != "tf32":
            if way == "forward":
                yield (Family.ATTENTION, math, Grade.FORWARD), timed
            elif (first := forward.get(_key(row))) is not None:
                back_ns = timed.took_ns - first["device_busy_us"] * 1e3
                back = Timed(row["flop"] - first["flop"], row["bytes"] - first["bytes"], back_ns)
                yield (Family.ATTENTION, math, Grade.BACKWARD), back
        elif (kind := _MOVING.get((row["family"], row["extra"].get("impl", row["op"])))) is not None:
            yield kind, timed


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return row["op"], row["dtype"], row["math"], tuple(row["shape"]), row["layout"], str(row["extra"].get("causal"))


def fitted(kind: Kind, timed: Sequence[Timed], peaks: Peaks, source: str) -> Known:
    """The share and fixed time that fit best."""
    family, math, grade = kind
    best, error, took = None, np.inf, np.array([one.took_ns for one in timed])
    for share in SHARES.tolist():
        for fixed_ns in MOVED_NS if family is Family.MEMORY else FIXED_NS:
            tried = Known(peaks.name, family, math, grade, round(share, 2), fixed_ns, 1.0, 1.0, len(timed), source)
            off = np.abs(np.log(said_ns(tried, peaks, timed) / took))
            if float(np.median(off) + off.mean()) < error - 1e-9:
                best, error = tried, float(np.median(off) + off.mean())
    assert best is not None
    low, high = np.quantile(took / said_ns(best, peaks, timed), [0.1, 0.9]).tolist()
    return msgspec.structs.replace(best, least=round(low, 2), most=round(high, 2))


def said_ns(one: Known, peaks: Peaks, timed: Sequence[Timed]) -> FloatArray:
    """What is said of ops of a kind."""
    flops, bytes_ = (np.array([getattr(op, of) for op in timed], dtype=np.float64) for of in ("flops", "bytes"))
    return one.took_ns(peaks, flops, bytes_)


def of_rates() -> list[Known]:
    """All kinds of ops of the devices in benchmarks/rates."""
    return [
        fitted(kind, timed, peaks, RATES_SOURCE)
        for name, peaks in DEVICES.items()
        for kind, timed in sorted(kinds_of(rows_of(RATES / f"{name}.json.gz")).items())
        if len(timed) >= FEWEST
    ]


def of_recordings(ops: Sequence[Recorded]) -> list[Known]:
    """Kinds of ops of other devices, as far as recordings tell them."""
    return [recorded(mine) for mine in by_kind(ops) if _tells(mine)]


def recorded(ops: Sequence[Recorded]) -> Known:
    """What recordings tell of a kind of op on a device. As they are few trainings, the range is widened."""
    sources = ", ".join(sorted({one.source for one in ops}))
    found = fitted(ops[0].kind, [one.timed for one in ops], ops[0].device, sources)
    least, most = (round(bound * by, 2) for bound, by in zip((found.least, found.most), ELSEWHERE, strict=True))
    return msgspec.structs.replace(found, least=least, most=most)


def _tells(ops: Sequence[Recorded]) -> bool:
    """Whether it is not known better, and there are enough whose times others of them foretell better than an H100."""
    long = [one for one in ops if one.timed.took_ns >= SHORTEST_NS]
    elsewhere = as_elsewhere(ops[0].device, ops[0].kind)
    if len({one.op for one in long}) < FEWEST_RECORDED or ops[0].device in DEVICES.values() or elsewhere is None:
        return False
    fits = held_out(ops)
    tested = [one for one in long if one.source in fits]
    own, other = ([abs(off(op, by or fits[op.source])) for op in tested] for by in (None, elsewhere))
    return bool(tested) and bool(np.median(own) < np.median(other))


def by_kind(ops: Sequence[Recorded]) -> list[list[Recorded]]:
    """Ops of recordings by device and kind."""
    found = defaultdict[tuple[str, Kind], list[Recorded]](list)
    for one in ops:
        found[one.device.name, one.kind].append(one)
    return [mine for _, mine in sorted(found.items(), key=lambda item: item[0])]


def off(op: Recorded, by: Known) -> float:
    """The relative error of what is said of an op."""
    return float(said_ns(by, op.device, [op.timed])[0]) / op.timed.took_ns - 1.0


def held_out(ops: Sequence[Recorded]) -> dict[str, Known]:
    """For each recording, what the others tell of a kind of op on a device; none where that are too few."""
    others = {source: [one for one in ops if one.source != source] for source in {one.source for one in ops}}
    return {source: recorded(some) for source, some in others.items() if len(some) >= FEWEST}


def as_elsewhere(device: Peaks, kind: Kind) -> Known | None:
    """What is said of a kind of op by what an H100 reaches."""
    family, math, grade = kind
    if family is Family.MEMORY:
        return Known(device.name, family, math, grade, BANDWIDTH, MOVED_FIXED_NS, *ELSEWHERE, 0, "")
    return known(device, family, math, grade, {key: one for key, one in table().items() if one.device == MEASURED_ON})
