"""The planted cases of sample_traces: what they are, what they cost measured, and their recordings.

    python -m benchmarks.planted_cases measure CASE... [--level LEVEL]   truth: steps without any profiler, both ways
    python -m benchmarks.planted_cases record CASE... [--level LEVEL]    what diagnose sees

Both need torch in the environment that runs them. Without CASE: all.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "sample_traces"
LEVELS = ("weak", "medium", "strong")

PAIRS = 5
"""Blocks each way. They alternate (A B, B A, A B, ...), so that a drift of the machine meets both alike."""

STEPS = 70
STEADY_SHARE = 0.05
"""Warm-up ends when the last ten steps differ by less (coefficient of variation), or after half of the steps."""

RESAMPLES = 10_000
WORTH = 1.03
"""A case counts if its speed-up is surely more than this."""

RECORDED_STEPS = 5


@dataclass(frozen=True)
class Truth:
    """What a fix gains, measured without a profiler. Times are ns per step, one for each block."""

    bad_ns: tuple[int, ...]
    fixed_ns: tuple[int, ...]
    speedup: float
    """Median over pairs of blocks."""
    low: float
    high: float
    """95 % interval of that, by bootstrap over pairs."""
    machine: dict[str, Any]

    @property
    def counts(self) -> bool:
        """Whether there surely is something to gain."""
        return self.low > WORTH


@dataclass(frozen=True)
class Case:
    """A planted case, as its about.toml tells."""

    name: str
    id: str
    title: str
    planted: str
    fixed: str
    expected: tuple[str, ...]
    """Rules any of which names the planted fault; empty: nothing is to be found."""
    family: str
    kind: str
    """"structural", "kernel" or "control"."""
    needs: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return SAMPLES / self.name

    def recording(self, level: str) -> Path:
        """What `diagnose profile` recorded of the bad variant."""
        return self.folder / level

    def truth(self, level: str) -> Truth | None:
        """What was measured; None if nothing was."""
        path = self.folder / "truth.json"
        found = json.loads(path.read_text(encoding="utf-8")).get(level) if path.exists() else None
        if found is None:
            return None
        return Truth(**{**found, "bad_ns": tuple(found["bad_ns"]), "fixed_ns": tuple(found["fixed_ns"])})


def cases() -> list[Case]:
    """All of them, by id."""
    import tomllib

    found = []
    for path in sorted(SAMPLES.glob("*/about.toml")):
        about = tomllib.loads(path.read_text(encoding="utf-8"))
        if "planted" in about:
            lists = {name: tuple(about[name]) for name in ("expected", "needs")}
            found.append(Case(name=path.parent.name, **{**about, **lists}))
    return sorted(found, key=lambda one: one.id)


def block_ns(case: Case, level: str, fixed: bool) -> int:
    """The mean step of one run in a process of its own, once it is steady."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times.json")
        command = [sys.executable, "-m", f"sample_traces.{case.name}.make", "--level", level, "--steps", str(STEPS)]
        environment = {**os.environ, "PLANTED_TIMES": str(times), "OMP_NUM_THREADS": "1"}
        subprocess.run(command + ["--fixed"] * fixed, cwd=ROOT, env=environment, check=True, stderr=subprocess.DEVNULL)
        taken: list[int] = json.loads(times.read_text(encoding="utf-8"))
    return int(statistics.mean(taken[warm_up(taken) :]))


def warm_up(times_ns: list[int]) -> int:
    """How many steps to leave out."""
    for begin in range(10, len(times_ns) // 2):
        last = times_ns[begin - 10 : begin]
        if statistics.stdev(last) < STEADY_SHARE * statistics.mean(last):
            return begin
    return len(times_ns) // 2


def measured(case: Case, level: str) -> Truth:
    """Run it both ways in turn."""
    bad, fixed = list[int](), list[int]()
    for pair in range(PAIRS):
        for is_fixed in (False, True) if pair % 2 == 0 else (True, False):
            (fixed if is_fixed else bad).append(block_ns(case, level, is_fixed))
    return truth_of(bad, fixed)


def truth_of(bad_ns: list[int], fixed_ns: list[int]) -> Truth:
    """The speed-up and its interval from blocks in pairs."""
    ratios = np.array(bad_ns) / np.array(fixed_ns)
    drawn = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[drawn], axis=1), [0.025, 0.975])
    return Truth(tuple(bad_ns), tuple(fixed_ns), float(np.median(ratios)), float(low), float(high), machine())


def machine() -> dict[str, Any]:
    """What ran it, without its name."""
    load = os.getloadavg()[0]
    return {"cpu": platform.machine(), "cores": os.cpu_count(), "load": round(load, 2), "torch": version("torch")}


def version(package: str) -> str | None:
    """Of an installed package."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def record(case: Case, level: str) -> None:
    """Record the bad variant, and keep what the recording's folder needs."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        command = [
            *(sys.executable, "-m", "diagnose", "profile", "-q", "--no-analyze", "--steps", str(RECORDED_STEPS)),
            *("-o", str(folder), "-m", f"sample_traces.{case.name}.make", "--level", level, "--steps", "1000000"),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        kept = case.recording(level)
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for path in folder.glob("*.json*"):
            (kept / path.name).write_bytes(published(path))


_PRIVATE = ("host_name", "traceName", "trace_id")
_LIBRARY = re.compile(r"/(?:[\w.+-]+/)*lib/python3\.\d+/(?:site-packages/)?")
_ABSOLUTE = re.compile(r"(?<![\w.])/(?:home|mnt|opt|root|tmp|Users|usr|var|work)/[\w./+-]*")


def published(path: Path) -> bytes:
    """A file of a recording without what names this machine or a path on it."""
    packed = path.suffix == ".gz"
    raw = path.read_bytes()
    content = json.loads(gzip.decompress(raw) if packed else raw)
    for key in _PRIVATE:
        content.pop(key, None)
    if "command" in content:
        content["command"][0] = "python"
        content["host"]["system"] = platform.system()
    text = json.dumps(content, separators=(",", ":")).replace(f"{ROOT}/", "")
    text = _ABSOLUTE.sub("", _LIBRARY.sub("", text))
    return gzip.compress(text.encode(), mtime=0) if packed else text.encode()


def main() -> None:
    """Measure or record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["measure", "record"])
    parser.add_argument("case", nargs="*")
    parser.add_argument("--level", choices=LEVELS, action="append")
    given = parser.parse_args()
    for case in cases():
        if given.case and case.name not in given.case and case.id not in given.case:
            continue
        for level in given.level or LEVELS:
            if given.what == "record":
                record(case, level)
                print(f"{case.id} {level}: recorded", flush=True)
            elif case.kind != "control":
                truth = measured(case, level)
                keep(case, level, truth)
                print(f"{case.id} {level}: x {truth.speedup:.2f} ({truth.low:.2f} to {truth.high:.2f})", flush=True)


def keep(case: Case, level: str, truth: Truth) -> None:
    """Write a truth beside the others of its case."""
    path = case.folder / "truth.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**known, level: asdict(truth)}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
