"""What ops of a kind reach on a device: `python -m benchmarks.known_costs [--write]` fits it to benchmarks/rates.

An op takes max(flops / (share x peak), bytes / (0.9 x bandwidth)) + a fixed time. `share` and the fixed time of each
kind of op are those with the least error, the sum of median and mean of |log(said / true)|; the range has 80 % of what
is left. The result is diagnose/costs/known.json, which the package takes along.
"""

from __future__ import annotations

import argparse
import gzip
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from diagnose.costs.known import KNOWN, Family, Grade, Known, grade_of
from diagnose.facts.core.matmuls import MATMULS
from diagnose.trace import hardware, kinds
from diagnose.trace.costs import DTYPE_BYTES
from diagnose.trace.hardware import Peaks

FloatArray = npt.NDArray[np.float64]
RATES = Path(__file__).with_name("rates")
DEVICES = {"nvidia_h100_80gb_hbm3": hardware.H100}
"""Files in benchmarks/rates, and what they are of."""

SHARES = np.arange(0.02, 1.001, 0.01)
FIXED_NS = np.array([0, 1_000, 2_000, 4_000, 6_000, 10_000, 16_000, 25_000])
FEWEST = 4  # Rows that tell a kind of op.


@dataclass(frozen=True)
class Timed:
    """One op that was timed."""

    flops: float
    bytes: float
    took_ns: float


Kind = tuple[Family, str, Grade]
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
            own_us = sum(us for name, _, us in row["kernels"] if kinds.kernel_kind(name) in MATMULS)
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


def said_ns(one: Known, peaks: Peaks, flops: FloatArray, bytes_: FloatArray) -> FloatArray:
    """What is said of ops of a kind."""
    return one.took_ns(peaks, flops, bytes_)


def fitted(kind: Kind, timed: list[Timed], peaks: Peaks) -> Known:
    """The share and fixed time that fit best."""
    family, math, grade = kind
    flops, bytes_, took = (np.array([getattr(one, name) for one in timed]) for name in ("flops", "bytes", "took_ns"))
    best, error = None, np.inf
    for share in SHARES:
        for fixed_ns in FIXED_NS.tolist():
            tried = Known(peaks.name, family, math, grade, round(float(share), 2), fixed_ns, 1.0, 1.0, len(timed))
            off = np.abs(np.log(said_ns(tried, peaks, flops, bytes_) / took))
            if float(np.median(off) + off.mean()) < error - 1e-9:
                best, error = tried, float(np.median(off) + off.mean())
    assert best is not None
    true = took / said_ns(best, peaks, flops, bytes_)
    low, high = np.quantile(true, [0.1, 0.9])
    return msgspec.structs.replace(best, least=round(float(low), 2), most=round(float(high), 2))


def fit() -> list[Known]:
    """All kinds of ops of all devices that were measured."""
    return [
        fitted(kind, timed, peaks)
        for name, peaks in DEVICES.items()
        for kind, timed in sorted(kinds_of(rows_of(RATES / f"{name}.json.gz")).items())
        if len(timed) >= FEWEST
    ]


def main() -> None:
    """Print what fits, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    found = b"[\n" + b",\n".join(msgspec.json.encode(one) for one in fit()) + b"\n]\n"
    if parser.parse_args().write:
        KNOWN.write_bytes(found)
    else:
        print(found.decode(), end="")


if __name__ == "__main__":
    main()
