"""How good are diagnoses of trainings that were not used to build any rule? `python -m benchmarks.others`.

Twenty small trainings of two authors (language models), who knew nothing of this project: each `train.py` has one
fault, which `fix.diff` mends. Each is recorded, its diagnosis is kept, and both variants are timed by turns without a
profiler. What comes out goes into benchmarks/others.json, from which benchmarks.texts makes the published rows.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click
import msgspec

import diagnose
from benchmarks.accuracy import OTHERS, figure, predicted
from benchmarks.field import Timing, measured
from benchmarks.verdicts import Other, findings, named
from diagnose.contracts.finding import Kind

FOLDER = Path(__file__).with_name("others")
PAIRS = 3
TIMING = Timing(skip=30, count=300, seconds=3.0)
ENDLESS = ("--steps", "100000")


def said_of(recording: Path, case: str, rules: tuple[str, ...]) -> Other:
    """What is said of a recording of a case, without what is true."""
    diagnosis = diagnose.analyze(recording)
    shown = findings(diagnosis)
    hit, place = named(rules, shown)
    said = None if hit is None else predicted(hit, diagnosis.step_ns or 0)
    option = hit is not None and hit.kind is Kind.OPTION
    return Other(case=case, found=tuple(one.rule for one in shown), place=place, predicted=said, option=option)


def without_phases(recording: Path) -> None:
    """Take the times by phase from a recording, so that one factor stands for what recording adds."""
    path = recording / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for rank in manifest["ranks"]:
        for one in (rank["unprofiled"], rank["timing"]):
            one["phases_ns"] = {}
    path.write_text(json.dumps(manifest), encoding="utf-8")


def both(case: str, folder: Path) -> tuple[Path, Path]:
    """Folders made in this one, that hold the training as it is, and without the fault. Needs `patch`."""
    before, after = folder / "before", folder / "after"
    for one in (before, after):
        one.mkdir()
        shutil.copy(FOLDER / case / "train.py", one)
    subprocess.run(["patch", "--silent", str(after / "train.py"), str(FOLDER / case / "fix.diff")], check=True)
    return before, after


def row(case: str, rules: tuple[str, ...]) -> Other:
    """A case recorded, diagnosed and measured."""
    with tempfile.TemporaryDirectory() as name:
        before, after = both(case, Path(name))
        out = Path(name, "recording")
        command = [sys.executable, "-m", "diagnose", "profile", "-q", "--no-analyze", "-o", str(out)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        subprocess.run([*command, str(before / "train.py"), *ENDLESS], check=True, capture_output=True, env=environment)
        said = said_of(out, case, rules)
        without_phases(out)
        plain = said_of(out, case, rules)
        truth = measured(before, after, ("train.py", *ENDLESS), TIMING, PAIRS)
    return replace(said, measured=figure(truth), by_one_factor=plain.predicted)


def cases() -> dict[str, tuple[str, ...]]:
    """The rules that name the fault of each case."""
    told = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
    return {case: tuple(one["rules"]) for case, one in told.items()}


@click.command()
@click.option("--write", is_flag=True, help="Into benchmarks/others.json.")
def main(write: bool) -> None:
    """Record, diagnose and measure every case; takes a quarter of an hour on a quiet machine."""
    rows = []
    for case, rules in cases().items():
        rows.append(row(case, rules))
        click.echo(msgspec.json.encode(rows[-1]).decode())
    if write:
        OTHERS.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


if __name__ == "__main__":
    main()
