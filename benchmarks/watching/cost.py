"""What `diagnose watch` costs a training, side by side with the script alone: `python -m benchmarks.watching.cost`.

Each run is a process of its own, in the order alone, watched, watched, alone, so that a drift of the machine's speed
falls on both sides alike. The table has the medians of the differences of such pairs, and their range.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

LOOP = Path(__file__).with_name("loop.py")
RESULTS = Path(__file__).with_name("cost.json")
STEPS = {"tiny": 20_000, "20ms": 500}
NAMES = {"tiny": "as fast as torch makes them", "20ms": "20 ms, most of it waiting for data"}
HEAD = (
    "| steps | step alone | watched | more wall time | more CPU time | of the step | losses |",
    "|---|--:|--:|--:|--:|--:|---|",
)


class Run(msgspec.Struct, frozen=True):
    """Means of a step, in us."""

    wall_us: float
    cpu_us: float
    loss: str


class Measured(msgspec.Struct, frozen=True):
    """Runs of one kind of loop, in pairs."""

    kind: str
    steps: int
    alone: tuple[Run, ...]
    watched: tuple[Run, ...]


class Published(msgspec.Struct, frozen=True):
    """What was measured, where."""

    cpu: str
    cpus: int | None
    python: str
    torch: str
    loops: tuple[Measured, ...]


@dataclass(frozen=True)
class More:
    """What watched runs take more than those beside them, in us a step."""

    least: float
    middle: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:.0f} µs ({self.least:.0f} to {self.most:.0f})"


def measure(kind: str, rounds: int) -> Measured:
    """Alone, watched, watched, alone, so many times."""
    alone, watched = list[Run](), list[Run]()
    for _ in range(rounds):
        alone.append(_run(kind, False))
        watched += [_run(kind, True), _run(kind, True)]
        alone.append(_run(kind, False))
    return Measured(kind, STEPS[kind], tuple(alone), tuple(watched))


def _run(kind: str, watched: bool) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        watch = ["-m", "diagnose", "watch", "-q", "--no-analyze", "-o", f"{folder}/log"] if watched else []
        words = [sys.executable, *watch, str(LOOP), kind, str(STEPS[kind])]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    wall_us, cpu_us, loss = done.stdout.split()
    return Run(float(wall_us), float(cpu_us), loss)


def more(one: Measured, name: str) -> More:
    """By pairs."""
    pairs = zip(one.alone, one.watched, strict=True)
    found = sorted(getattr(watched, name) - getattr(alone, name) for alone, watched in pairs)
    return More(found[0], median(found), found[-1])


def table() -> str:
    """In Markdown."""
    published = msgspec.json.decode(RESULTS.read_bytes(), type=Published)
    rows = [_row(one) for one in published.loops]
    where = f"{published.cpu}, {published.cpus} cores, Python {published.python}, torch {published.torch}."
    pairs = len(published.loops[0].alone)
    return "\n".join([*HEAD, *rows, "", f"Medians of {pairs} pairs of runs and their range. {where}"])


def _row(one: Measured) -> str:
    alone, watched = (median(run.wall_us for run in side) for side in (one.alone, one.watched))
    wall, cpu = more(one, "wall_us"), more(one, "cpu_us")
    same = "same to the bit" if len({run.loss for run in (*one.alone, *one.watched)}) == 1 else "differ"
    share = f"{100 * wall.middle / alone:.1f} %"
    return f"| {NAMES[one.kind]} | {alone:,.0f} µs | {watched:,.0f} µs | {wall} | {cpu} | {share} | {same} |"


def main() -> None:
    """Measure and keep it."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    loops = tuple(measure(kind, rounds) for kind in STEPS)
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    published = Published(cpu, os.cpu_count(), platform.python_version(), str(torch.__version__), loops)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(published), indent=2) + b"\n")
    print(table())


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    main()
