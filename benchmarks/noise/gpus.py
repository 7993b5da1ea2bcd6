"""Equal runs on GPUs: `python -m benchmarks.noise.gpus CORPUS` analyses the recordings that tell what bounds them.

Runs are those in which the truth of planted cases was timed, on an H100: two or three of each. How runs of public
trainings differed is as it was measured by hand. Of recordings of trainings in the corpus there is one each, whose
halves are compared: these share a process, and so differ by less than runs do.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

import diagnose
from benchmarks.noise.between import blocks, fitted
from benchmarks.planted_cases import cases, trials
from diagnose.advice.timing import error_of, waiting_share
from diagnose.comparing.compare import verdict_of
from diagnose.comparing.noise import Side, difference, visible_share
from diagnose.comparing.runs import run_of
from diagnose.contracts.baseline import Run
from diagnose.contracts.comparison import Range
from diagnose.statistics import CPU, RANKS, Spread, of_waiting

RESULTS = Path(__file__).parent.parent / "noise_gpus.json"

BY_HAND = {
    "gpt2_2_bf16": (88.54, 88.80),
    "hf_trainer_bert": (1.0, 1.03),
    "nanogpt_eager": (1.0, 1.06),
    "imagenet_resnet50": (1.0, 1.08),
}
"""Recordings in the corpus -> how equal runs of these trainings differed on that H100."""

FILLED = 0.1  # Of the step that a GPU waits, at most: then it is said to bound the step.

HEADS = ("equal runs, two at a time", "pairs", "slower", "faster", "no difference", "cannot tell", "visible")


class Group(msgspec.Struct, frozen=True):
    """Equal runs of one training."""

    name: str
    waiting: float  # The share of the step in which the GPU waits for its host.
    steps_ns: tuple[float, ...]  # The mean step of each.

    @property
    def scaled(self) -> list[float]:
        """Logarithms, of runs in which the GPU did nothing but wait."""
        return [math.log(ns) / of_waiting(self.waiting, Spread(1.0, 1)).share for ns in self.steps_ns]


class Recording(msgspec.Struct, frozen=True):
    """Of a training in the corpus."""

    name: str
    waiting: float
    unprofiled_ns: tuple[int, ...]  # Of steps without the profiler.


class Found(msgspec.Struct, frozen=True):
    """What was analysed."""

    planted: tuple[Group, ...]  # Cases with their fault.
    recordings: tuple[Recording, ...]

    @property
    def groups(self) -> list[Group]:
        """All equal runs."""
        waiting = {one.name: one.waiting for one in self.recordings}
        return [*self.planted, *(Group(name, waiting[name], steps_ns) for name, steps_ns in BY_HAND.items())]


def published(path: Path = RESULTS) -> Found:
    """What stands there."""
    return msgspec.json.decode(path.read_bytes(), type=Found)


def fit(some: Sequence[Group]) -> Spread:
    """How the time differs in which GPUs wait."""
    return fitted([one.scaled for one in some])


def table(found: Found) -> str:
    """Verdicts on pairs of equal runs, by what is known of all other trainings, and on halves of runs."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" + "|--:" * (len(HEADS) - 1) + "|"]
    runs = [(group.waiting, one) for group in found.groups for one in _pairs(group, found.groups)]
    halves = [(one.waiting, _halves(one)) for one in found.recordings]
    for several_ranks, what in ((False, "a CPU, one process"), (True, "a CPU, several processes")):
        lines.append(_row(f"runs on {what}", list(_on_cpu(several_ranks))))
    for what, some in (("runs on an H100", runs), ("halves of a run on an H100", halves)):
        lines.append(_row(f"{what}, which bounds the step", [one for waiting, one in some if waiting <= FILLED]))
        lines.append(_row(f"{what}, which waits for its host", [one for waiting, one in some if waiting > FILLED]))
    return "\n".join(lines)


def _pairs(group: Group, known: Sequence[Group]) -> Iterator[Range]:
    spread = of_waiting(group.waiting, fit([one for one in known if one is not group]))
    for first, second in combinations(group.steps_ns, 2):
        yield _difference(first, second, spread)


def _on_cpu(several_ranks: bool) -> Iterator[Range]:
    """Of the runs in which the truth of planted cases was timed."""
    for group in blocks(several_ranks):
        for first, second in combinations(map(math.exp, group), 2):
            yield _difference(first, second, RANKS if several_ranks else CPU)


def _difference(first_ns: float, second_ns: float, spread: Spread) -> Range:
    """How far a run's own mean is off is part of how runs differ."""
    return difference(*(Side((ns,), (Spread(0.0, 1),), spread) for ns in (first_ns, second_ns)))


def _halves(one: Recording) -> Range:
    middle = len(one.unprofiled_ns) // 2
    halves, spread = (one.unprofiled_ns[:middle], one.unprofiled_ns[middle:]), of_waiting(one.waiting)
    return difference(*(Side((statistics.fmean(some),), (error_of(some),), spread) for some in halves))


def _row(what: str, compared: Sequence[Range]) -> str:
    verdicts = [verdict_of(one) for one in compared]
    shares = [f"{verdicts.count(one) / len(verdicts):.1%}" for one in ("slower", "faster", "same", "cannot_tell")]
    visible = statistics.median(visible_share(one) or 1.0 for one in compared)
    return f"| {' | '.join([what, str(len(compared)), *shares, f'{visible:.1%}'])} |"


def sentence(found: Found) -> str:
    """What the table rests on."""
    return (
        f"Runs on an H100: of {len(found.planted)} planted trainings two or three each,"
        f" of {len(BY_HAND)} public ones two each."
        f" Halves: of {len(found.recordings)} recordings of public trainings, which have one run each."
    )


def main() -> None:
    """Analyse the recordings, and write what was found."""
    planted, recordings = [], []
    for trial in trials(cases()):
        truth = trial.truth()
        if trial.on_gpu and trial.is_kept and trial.recording.is_dir() and truth is not None:
            planted.append(Group(trial.case.name, _waiting(run_of(diagnose.analyze(trial.recording))), truth.bad_ns))
    for folder in sorted(path.parent for path in Path(sys.argv[1], "h100").glob("*/manifest.json")):
        run = run_of(diagnose.analyze(folder))
        recordings.append(Recording(folder.name, _waiting(run), run.unprofiled_ns))
    rows = [b",\n  ".join(map(msgspec.json.encode, some)) for some in (planted, recordings)]
    RESULTS.write_bytes(b'{"planted": [\n  %b],\n "recordings": [\n  %b]}\n' % (rows[0], rows[1]))
    print(table(published()))
    print(fit(published().groups))


def _waiting(run: Run) -> float:
    return round(waiting_share(run.spending, statistics.fmean(run.unprofiled_ns or run.times_ns)), 4)


if __name__ == "__main__":
    main()
