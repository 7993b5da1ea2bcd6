"""Does measuring changed ops make prices right? `python -m benchmarks.changed_ops [NAME...] [--seconds S] [--write]`

Trainings on the CPU whose fault is how ops compute: planted cases, and those of benchmarks.changed_ops_training.
Each is timed with and without its fault and recorded on this machine. It is diagnosed without measurements, then with
those of `diagnose measure`. `--write` puts the rows into benchmarks/changed_ops.json, each as soon as it is there;
those that are there are not made again. It needs torch, and a machine that does nothing else meanwhile.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

import diagnose
from benchmarks import blocks
from benchmarks.accuracy import figure, predicted
from benchmarks.accuracy_tables import meets
from benchmarks.accuracy_tables import table as markdown
from benchmarks.changed_ops_training import TRAININGS
from benchmarks.ground_truth import recorded
from benchmarks.planted_cases import Machine, cases, trials
from benchmarks.verdicts import Figure, findings
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.replay.saving import Basis

RESULTS = Path(__file__).with_name("changed_ops.json")
PLANTED = ("data_in_double_precision", "optimizer_one_by_one")  # Cases of one thread that waits for nothing.
OWN = "benchmarks.changed_ops_training"
RULES = ("double_precision", "unfused_optimizer")
RECORDED_STEPS = 5
PAIRS, STEPS = 4, 45  # Blocks each way, and steps of each, of which the first third does not count.


@dataclass(frozen=True)
class Training:
    """A training with a fault, and what it is started by."""

    name: str
    program: tuple[str, ...]  # Module and arguments.
    fixed: tuple[str, ...]  # What takes the fault away.


class Said(msgspec.Struct, frozen=True):
    """What is said of a fault."""

    speedup: Figure | None  # None: it is not named.
    measured: bool  # The price rests on measurements.


class Row(msgspec.Struct, frozen=True):
    """A training, what is true of it, and what is said."""

    name: str
    true: Figure
    counts: bool  # Whether there surely is something to gain.
    without: Said  # Measurements.
    by_measuring: Said
    ops: int  # Changed ops that were measured.
    not_measured: int
    seconds: float  # That measuring took.
    kernels: float | None = (
        None  # Device work of a step, over that of a recording without the fault, where there is one.
    )


class Published(msgspec.Struct, frozen=True):
    """All rows, of one machine."""

    machine: Machine
    rows: tuple[Row, ...]


def published() -> Published:
    """What stands in benchmarks/changed_ops.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Published)


def trainings() -> Iterator[Training]:
    """All of them."""
    for name in TRAININGS:
        yield Training(name, (OWN, name), ("--fixed",))
    for trial in trials(cases()):
        if trial.case.name in PLANTED and not trial.on_gpu:
            program = (trial.case.module, "--level", trial.level)
            yield Training(f"{trial.case.name}, {trial.level}", program, ("--fixed",))


def step_ns(training: Training, way: Sequence[str]) -> int:
    """What a step takes of the processor, by one run: other programs may use the machine meanwhile.

    The trainings have one thread, and wait for nothing.
    """
    told = blocks.ran(training.program[0], [*training.program[1:], "--steps", str(STEPS), *way], ranks=1)
    return int(statistics.median(told["cpu_ns"][STEPS // 3 :]))


def row(training: Training) -> Row:
    """What is true, and what is said of one recording before and after ops were measured."""
    truth = blocks.by_turns(partial(step_ns, training, ()), partial(step_ns, training, training.fixed), PAIRS)
    with recorded((*training.program, "--steps", "1000000"), 1, RECORDED_STEPS) as folder:
        before = diagnose.analyze(folder)
        command = [sys.executable, "-m", "diagnose", "measure", "-q", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        after = diagnose.analyze(folder)
    found = after.measured
    counts = (found.ops, found.not_measured, found.seconds) if found else (0, 0, 0.0)
    return Row(training.name, figure(truth), truth.counts, said(before), said(after), *counts)


def said(diagnosis: Diagnosis, rules: Collection[str] = RULES) -> Said:
    """Of the first finding that names a fault of these kinds."""
    hit = next((one for one in findings(diagnosis) if set(one.rules) & set(rules)), None)
    if hit is None:
        return Said(None, False)
    return Said(predicted(hit, diagnosis.step_ns or 0), hit.saving.basis is Basis.MEASURED)


def table(found: Sequence[Row]) -> str:
    """A row for each training that surely gains by its fix, and one that sums them up."""
    head = ["training", "truth", "with measuring", "range met", "without", "range met", "ops measured"]
    rows = [one for one in found if one.counts]
    lines = []
    for one in rows:
        sides = [text for some in (one.by_measuring, one.without) for text in (_shown(some.speedup), _met(one, some))]
        lines.append([f"`{one.name}`", _shown(one.true), *sides, f"{one.ops} of {one.ops + one.not_measured}"])
    both = [[(one, one.by_measuring) for one in rows], [(one, one.without) for one in rows]]
    in_short = [text for some in both for text in (_off(some), _met_by(some))]
    lines.append(["**median error; range met**", "", *in_short, ""])
    return markdown(head, lines)


Pairs = Sequence[tuple[Row, Said]]


def _shown(one: Figure | None) -> str:
    return "not named" if one is None else f"{one.likely:.2f} ({one.low:.2f} to {one.high:.2f})"


def _met(one: Row, some: Said) -> str:
    return "-" if some.speedup is None else "yes" if meets(some.speedup, one.true) else "no"


def _met_by(some: Pairs) -> str:
    told = [meets(one.speedup, row.true) for row, one in some if one.speedup is not None]
    return f"{sum(told)} of {len(told)}"


def _off(some: Pairs) -> str:
    errors = [abs(one.speedup.likely / row.true.likely - 1) for row, one in some if one.speedup is not None]
    return f"{statistics.median(errors):.0%}" if errors else "-"


def main() -> None:
    """Print the table; keep the rows if asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="*", help="of a training, as it begins")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--write", action="store_true", help="into benchmarks/changed_ops.json")
    given = parser.parse_args()
    begin, machine = time.monotonic(), blocks.machine()
    rows = list(published().rows) if given.write and RESULTS.exists() else []
    done = {one.name for one in rows}
    for training in trainings():
        asked = not given.name or training.name.startswith(tuple(given.name))
        if not asked or training.name in done or time.monotonic() - begin > given.seconds:
            continue
        rows.append(row(training))
        print(rows[-1], flush=True)
        if given.write:
            found = Published(machine, tuple(rows))
            RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    print(table(rows))


if __name__ == "__main__":
    main()
