"""What the fix of a job's fault gains, measured without a profiler; and recordings of the job with the fault."""

from __future__ import annotations

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

PAIRS = 3
"""Runs each way. They alternate (A B, B A, A B), so that a drift of the machine meets both alike."""
WARM_UP, STEPS = 4, 10
"""Of each run. Together 30 measured steps each way."""


def truths() -> dict[str, Truth]:
    """All that was measured, by the case's name."""
    if not TRUTHS.exists():
        return {}
    return {name: truth_from(**found) for name, found in json.loads(TRUTHS.read_text(encoding="utf-8")).items()}


def measure(case: Case) -> Truth:
    """Run the job both ways in turn, and keep what was found."""
    taken: dict[bool, list[int]] = {False: [], True: []}
    for pair in range(PAIRS):
        for fixed in (False, True) if pair % 2 == 0 else (True, False):
            taken[fixed].append(_median_ns(case, fixed))
    truth = blocks.truth_of(taken[False], taken[True], blocks.machine())
    known = {name: asdict(one) for name, one in truths().items()} | {case.name: asdict(truth)}
    TRUTHS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
    return truth


def _median_ns(case: Case, fixed: bool) -> int:
    told = blocks.ran(MODULE, [*case.arguments(fixed), "--steps", str(WARM_UP + STEPS)], case.ranks)
    return int(statistics.median(told["times_ns"][WARM_UP:]))


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
