"""A job of many ranks made from the recordings of a few: their traces with other rank numbers, clocks and stragglers.

Rank r is rank r % n of a recorded job of n ranks, on a machine of its own eight, whose clock is off. A straggler takes
longer for one op of every step: on all ranks everything after that moment is later, and on the others the collective
in which they wait is as much longer.
"""

import gzip
import json
from bisect import bisect_right
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SAMPLE = ROOT / "sample_traces" / "jobs" / "healthy_tensor"
RANKS_PER_MACHINE = 1
CLOCK_US = 7_919.0
"""By how much the clock of each machine is ahead of the one before, back to 0 after a hundred of them."""


@dataclass(frozen=True)
class Straggler:
    """A rank that computes longer in every step."""

    rank: int
    late_us: float


@dataclass(frozen=True)
class Seed:
    """The trace of a recorded rank."""

    trace: dict[str, Any]
    op_us: tuple[float, ...]  # In each step a moment within the longest op before the first collective.
    collective_us: tuple[float, ...]  # In each step a moment within the first collective.


def seeds(sample: Path = SAMPLE) -> tuple[Seed, ...]:
    """The ranks of a recorded job, in order."""
    return tuple(_seed(path) for path in sorted(sample.glob("rank*.trace.json.gz")))


def _seed(path: Path) -> Seed:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    timed = [one for one in trace["traceEvents"] if one.get("ph") == "X"]
    steps = [one for one in timed if one["name"].startswith("ProfilerStep#")]
    inside = [[one for one in timed if step["ts"] <= one["ts"] < step["ts"] + step["dur"]] for step in steps]
    asked = [min((one for one in some if one["name"].startswith("c10d::")), key=_start) for some in inside]
    collectives = [min((one for one in some if one["name"].startswith("gloo:")), key=_start) for some in inside]
    ops = [
        max((one for one in some if one["cat"] == "cpu_op" and _end(one) < first["ts"]), key=_us)
        for some, first in zip(inside, asked, strict=True)
    ]
    return Seed(trace, tuple(map(_middle, ops)), tuple(map(_middle, collectives)))


def _start(event: dict[str, Any]) -> float:
    return float(event["ts"])


def _us(event: dict[str, Any]) -> float:
    return float(event["dur"])


def _end(event: dict[str, Any]) -> float:
    return _start(event) + _us(event)


def _middle(event: dict[str, Any]) -> float:
    return _start(event) + _us(event) / 2


def make(folder: Path, ranks: int, straggler: Straggler | None, jobs: int = 2) -> None:
    """Write the traces of a job of `ranks` ranks into a folder, which must not exist."""
    folder.mkdir(parents=True)
    with ProcessPoolExecutor(jobs) as pool:
        list(pool.map(partial(_write, folder, ranks, straggler), range(ranks), chunksize=16))


_SEEDS: list[Seed] = []


def _write(folder: Path, ranks: int, straggler: Straggler | None, rank: int) -> None:
    if not _SEEDS:
        _SEEDS.extend(seeds())
    text = json.dumps(trace_of(_SEEDS[rank % len(_SEEDS)], rank, ranks, straggler))
    (folder / f"rank{rank}.trace.json.gz").write_bytes(gzip.compress(text.encode(), 1, mtime=0))


def trace_of(seed: Seed, rank: int, ranks: int, straggler: Straggler | None) -> dict[str, Any]:
    """The trace of one rank of the job."""
    machine = rank // RANKS_PER_MACHINE
    ahead_us = CLOCK_US * (machine % 100)
    late_us = straggler.late_us if straggler else 0.0
    moments = seed.op_us if straggler and straggler.rank == rank else seed.collective_us
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "pg_size": ranks}
    info = {
        "backend": "gloo",
        "rank": rank,
        "world_size": ranks,
        "pg_count": 1,
        "pg_config": [{**group, "ranks": list(range(ranks))}],
    }

    def moved(event: dict[str, Any]) -> dict[str, Any]:
        if "ts" not in event:
            return event
        begin = _start(event)
        before = bisect_right(moments, begin)
        found = {**event, "ts": round(begin + late_us * before + ahead_us, 3)}
        if "dur" in event:
            within = bisect_right(moments, _end(event)) - before
            found["dur"] = round(_us(event) + late_us * within, 3)
        return found

    events = [moved(one) for one in seed.trace["traceEvents"]]
    return {**seed.trace, "distributedInfo": info, "host_name": f"machine{machine}", "traceEvents": events}
