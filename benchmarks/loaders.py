"""Predicted and measured steps with 0 to 6 DataLoader workers: `python -m benchmarks.loaders --write`.

Six small trainings, each slow in another way, are timed with each number of workers, and recorded with 0 and with 2.
Needs Linux, and some 15 minutes; what other processes take meanwhile is noted with each figure.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.loaders_training import KINDS
from diagnose.facts.core.base import Facts
from diagnose.facts.data.loading import loading
from diagnose.source import recording

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).with_name("loaders.json")
TRAINING = Path(__file__).with_name("loaders_training.py")
WORKERS = (0, 1, 2, 4, 6)
FROM = {0: WORKERS, 2: (4,)}  # Workers that are recorded -> those that are predicted.
SECONDS, QUIETEST_S = 10.0, 10.0  # That are timed, and of these what counts.
RIGHT = 0.1  # Of the measured step.
NAMES = {
    "remote": "remote reads (sleep only)",
    "transforms": "transforms (CPU only)",
    "both": "reads and transforms",
    "handing": "64 small tensors a batch",
    "collate": "heavy collate",
    "small": "512 small items a batch",
}


class Measured(msgspec.Struct, frozen=True):
    """Steps with a number of workers."""

    step_ms: float  # Mean.
    others: float  # Cores that other processes kept busy meanwhile.
    load: float  # Average of the last minute.


class Row(msgspec.Struct, frozen=True):
    """A training."""

    kind: str
    measured: dict[int, Measured]
    predicted: dict[int, dict[int, tuple[float, float, float]]]
    """Workers of the recording -> workers -> step in ms: likely, least, most."""
    quantities: dict[int, dict[str, float]]  # Workers of the recording -> what it says, in ms.
    recorded_load: dict[int, float]


class Results(msgspec.Struct, frozen=True):
    """What is published."""

    machine: str
    rows: list[Row]


def measure(kind: str, workers: int) -> Measured:
    """The quietest stretches count."""
    command = [sys.executable, str(TRAINING), kind, f"--workers={workers}", f"--seconds={SECONDS}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    time_s, steps, others = 0.0, 0, list[float]()
    for one_s, count, other in sorted(json.loads(done.stdout), key=lambda one: one[2]):
        if time_s < QUIETEST_S:
            time_s, steps = time_s + one_s, steps + count
            others.append(other)
    return Measured(time_s / steps * 1e3, fmean(others), os.getloadavg()[0])


def record(kind: str, workers: int, out: Path) -> tuple[dict[str, float], dict[int, tuple[float, float, float]]]:
    """What a recording says, and the steps that it predicts."""
    command = [sys.executable, "-m", "diagnose", "profile", "-q", "--no-analyze", "-o", str(out)]
    subprocess.run([*command, str(TRAINING), kind, f"--workers={workers}"], capture_output=True, cwd=ROOT, check=True)
    found = loading(Facts(recording.read(recording.find([out]).ranks[0])))
    model = msgspec.structs.asdict(found.model)
    quantities = {name: value / 1e6 for name, value in model.items() if name.endswith("_ns")}
    slow, likely, fast = found.models
    steps = {k: (likely.step_ns(k) / 1e6, fast.step_ns(k) / 1e6, slow.step_ns(k) / 1e6) for k in FROM[workers]}
    return {**quantities, "step": found.mean_ns / 1e6}, steps


def run(kinds: tuple[str, ...]) -> Results:
    """Measure and record all."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for kind in kinds:
            quantities, predicted, load = {}, {}, {}
            for workers in FROM:
                quantities[workers], predicted[workers] = record(kind, workers, Path(name) / f"{kind}{workers}")
                load[workers] = os.getloadavg()[0]
            measured = {workers: measure(kind, workers) for workers in WORKERS}
            rows.append(Row(kind, measured, predicted, quantities, load))
            print("\n".join(lines([rows[-1]])), flush=True)
    return Results(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}", rows)


def errors(rows: list[Row]) -> list[float]:
    """Of each prediction, as a share of what was measured."""
    return [
        likely / row.measured[workers].step_ms - 1
        for row in rows
        for steps in row.predicted.values()
        for workers, (likely, _, _) in steps.items()
    ]


def lines(rows: list[Row]) -> list[str]:
    """Of the table: predicted / measured, and the difference."""
    found = []
    for row in rows:
        for recorded, steps in row.predicted.items():
            cells = [
                f"{steps[k][0]:.1f} / {row.measured[k].step_ms:.1f} ({steps[k][0] / row.measured[k].step_ms - 1:+.0%})"
                if k in steps
                else ""
                for k in WORKERS
            ]
            found.append(f"| {NAMES[row.kind]} | {recorded} | {' | '.join(cells)} |")
    return found


def table() -> str:
    """The published one."""
    results = msgspec.json.decode(RESULTS.read_bytes(), type=Results)
    found = errors(results.rows)
    others = [one.others for row in results.rows for one in row.measured.values()]
    load = [
        one for row in results.rows for one in (*row.recorded_load.values(), *(m.load for m in row.measured.values()))
    ]
    head = f"| training | recorded with | {' | '.join(f'{k} workers' for k in WORKERS)} |"
    right = sum(abs(one) <= RIGHT for one in found)
    return "\n".join(
        [
            f"{head}\n|---|--:|{'--:|' * len(WORKERS)}",
            *lines(results.rows),
            "",
            f"Predicted / measured step in ms. {right} of {len(found)} predictions are within {RIGHT:.0%}."
            f" {results.machine}; other processes kept {min(others):.1f} to {max(others):.1f} cores busy,"
            f" and the load average was {min(load):.1f} to {max(load):.1f}.",
        ]
    )


def main() -> None:
    """Measure, and publish with `--write`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="publish what was measured")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one")
    given = parser.parse_args()
    results = run(tuple(given.kind or KINDS))
    found = errors(results.rows)
    print(f"{sum(abs(one) <= RIGHT for one in found)} of {len(found)} within {RIGHT:.0%}")
    if given.write:
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


if __name__ == "__main__":
    main()
