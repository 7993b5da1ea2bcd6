"""Whether `diagnose compare` takes noise for a difference: `python -m benchmarks.noise [--seconds N] [--write]`.

It needs torch, and a machine that does nothing else meanwhile. Healthy controls are recorded again and again, as they
are, and with each step made longer by known shares, in turn. `--write` keeps each recording as it comes, and goes on
where it ended.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.blocks import machine
from benchmarks.noise import tables
from benchmarks.noise.between import blocks, fitted, freedom_within_cases, healthy
from benchmarks.noise.results import SLOWDOWNS, Recorded, Timed, published, write
from benchmarks.planted_cases import ROOT, Trial, cases, trials
from diagnose.statistics import CPU, RANKS, SESSION

CONTROLS = 14  # Healthy trainings of one process on the CPU: the first by name.
ROUNDS = 6  # Recordings of each as it is: 15 pairs, so 210 in all.

SLOWED_ROUNDS = 3

LIMIT_S = 120.0


def main() -> None:
    """Record what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end before so many have passed")
    parser.add_argument("--write", action="store_true", help="into benchmarks/noise.json")
    given = parser.parse_args()
    os.chdir(ROOT)
    found, begun_s = published(), time.monotonic()
    for trial, number, slowdown in missing(found):
        if time.monotonic() - begun_s > given.seconds:
            print("Time is up; the next call goes on.")
            break
        row = recorded(trial, number, slowdown, found)
        found = Recorded(machine(), (*found.rows, row))
        print(f"{row.control} {slowdown:.0%}: {statistics.fmean(row.unprofiled_ns) / 1e6:.2f} ms", flush=True)
        if given.write:
            write(found)
    print(tables.table(found))
    print(f"By healthy trainings runs differ by {fitted(healthy())}, used: {CPU}")
    print(f"By planted cases blocks differ by {fitted(blocks(several_ranks=False))}")
    print(f"By planted cases of several ranks runs differ by {fitted(blocks(several_ranks=True))}, used: {RANKS}")
    print(f"Spreads with and without a fault agree by {freedom_within_cases():.1f} degrees of freedom, used: {SESSION}")


def missing(found: Recorded) -> Iterator[tuple[Trial, int, float]]:
    """The recordings that are not there yet: a round of all controls, then the next."""
    there = {(row.control, row.round, row.slowdown) for row in found.rows}
    healthy = [one for one in trials(cases()) if one.case.is_control and one.is_kept and not one.on_gpu]
    alone = [one for one in healthy if one.ranks == 1 and one.case.name.startswith("healthy")][:CONTROLS]
    for number in range(ROUNDS):
        for trial in alone:
            for slowdown in (0.0, *SLOWDOWNS) if number < SLOWED_ROUNDS else (0.0,):
                if (trial.case.name, number, slowdown) not in there:
                    yield trial, number, slowdown


def recorded(trial: Trial, number: int, slowdown: float, found: Recorded) -> Timed:
    """Record a control; what is slowed waits for a share of the mean step of its first recording."""
    program = [trial.case.module]
    if slowdown:
        step_ns = statistics.fmean(found.of(trial.case.name)[0].unprofiled_ns)
        program = ["benchmarks.noise.slowed", str(round(slowdown * step_ns)), *program]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [sys.executable, "-m", "diagnose", "profile", "-q", "--no-analyze", "-o", str(out), "-m", *program]
        command += ["--level", trial.level, "--steps", "100000"]
        subprocess.run(command, check=True, timeout=LIMIT_S, env={**os.environ, "OMP_NUM_THREADS": "1"})
        ran = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["ranks"][0]
    return Timed(
        trial.case.name, number, slowdown, tuple(ran["unprofiled"]["wall_ns"]), tuple(ran["timing"]["wall_ns"])
    )


if __name__ == "__main__":
    main()
