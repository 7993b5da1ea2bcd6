"""What is said of a planted case if its recording holds less: a trace alone, two steps, one rank."""

import shutil
import tempfile
from pathlib import Path

import diagnose
from benchmarks.planted_cases import Trial
from benchmarks.verdicts import WITHOUT, Poorer, findings, named, promised
from diagnose.contracts.diagnosis import Diagnosis

LEFT_OUT = {
    "detail": ("*.detail.*",),
    "manifest": ("manifest.json",),
    "both": ("manifest.json", "*.detail.*", "*.graph.*", "*.values.*"),
    "ranks": ("rank[!0].*",),
}
"""By what an ablation leaves out: its files."""


def poorer(trial: Trial, whole: Diagnosis, expected: tuple[str, ...]) -> list[Poorer]:
    """What is said of a recording as it is, and without parts of it. `expected`: rules that name the fault."""
    found = []
    for without in WITHOUT:
        if without != "ranks" or trial.ranks > 1:
            shown = findings(_diagnosed(trial, without, whole))
            _, place = named(expected, shown)
            found.append(Poorer(trial.case.name, trial.name, without, place, promised(shown), trial.case.is_control))
    return found


def _diagnosed(trial: Trial, without: str, whole: Diagnosis) -> Diagnosis:
    if without == "nothing":
        return whole
    if without == "steps":
        first, second, *_ = whole.steps.numbers if whole.steps else ()
        return diagnose.analyze(trial.recording, steps=(first, second))
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch, "run")
        shutil.copytree(trial.recording, kept, ignore=shutil.ignore_patterns(*LEFT_OUT[without]))
        return diagnose.analyze(kept)
