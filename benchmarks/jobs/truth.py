"""What the fix of a job's fault gains, measured without a profiler; and recordings of the job with the fault."""

import json
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path

from benchmarks import blocks, ground_truth
from benchmarks.jobs.cases import FOLDER, Case
from benchmarks.planted_cases import REMADE, Truth, truth_from

TRUTHS = FOLDER / "truth.json"
MODULE = "sample_traces.jobs.run"

PAIRS, IN_TURN = 6, 6
"""Both jobs run in the same processes, so many steps of the one, then as many of the other: a drift of the machine
meets both alike. The first pair is warm-up, and so is the first step of each turn: 25 steps each way are measured."""


def truths() -> dict[str, Truth]:
    """All that was measured, by the case's name."""
    if not TRUTHS.exists():
        return {}
    return {name: truth_from(**found) for name, found in json.loads(TRUTHS.read_text(encoding="utf-8")).items()}


def measure(case: Case) -> Truth:
    """Run the job both ways in turn, and keep what was found."""
    steps = ["--steps", str(2 * PAIRS * IN_TURN), "--in-turn", str(IN_TURN)]
    told = blocks.ran(MODULE, [*case.arguments(False), *steps, "--beside", *case.arguments(True)[1:]], case.ranks)
    turns = [_median_ns(told["times_ns"], turn) for turn in range(2, 2 * PAIRS)]
    truth = blocks.truth_of(turns[::2], turns[1::2], blocks.machine())
    known = {name: asdict(one) for name, one in truths().items()} | {case.name: asdict(truth)}
    TRUTHS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
    return truth


def _median_ns(times_ns: list[int], turn: int) -> int:
    return int(statistics.median(times_ns[turn * IN_TURN + 1 : (turn + 1) * IN_TURN]))


def record(case: Case) -> Path:
    """Record the job with its fault, as `diagnose profile` does.

    Returns the folder: in sample_traces/jobs if one is kept there, else where recordings are that are not.
    """
    folder = case.kept if case.kept.is_dir() else REMADE / "jobs" / case.name
    program = [MODULE, *case.arguments(fixed=False), "--steps", "1000000"]
    with ground_truth.recorded(program, case.ranks, case.steps) as made:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ground_truth.keep(made.glob("*.json*"), folder)
    return folder
