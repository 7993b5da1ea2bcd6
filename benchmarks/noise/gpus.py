"""Equal runs on GPUs: `python -m benchmarks.noise.gpus CORPUS` analyses the recordings that tell what bounds them.

Runs are those in which the truth of planted cases was timed, on an H100: two or three of each. How runs of public
trainings differed is as it was measured by hand.
"""

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
from diagnose.advice.timing import waiting_shares
from diagnose.comparing.compare import verdict_of
from diagnose.comparing.noise import Side, difference, visible_share
from diagnose.comparing.runs import run_of
from diagnose.contracts.comparison import Range
from diagnose.statistics import CPU, NAMED, RANKS, Spread, of_waiting, of_waits

RESULTS = Path(__file__).parent.parent / "noise_gpus.json"

BY_HAND = {
    "gpt2_2_bf16": (88.54, 88.80),
    "hf_trainer_bert": (1.0, 1.03),
    "nanogpt_eager": (1.0, 1.06),
    "imagenet_resnet50": (1.0, 1.08),
}
"""Recordings in the corpus -> how equal runs of these trainings differed on that H100."""

MOSTLY = 2  # Times as long as for launches, from which on waits tell how those for all else differ.
FILLED = 0.1  # Of the step that a GPU waits, at most: then it is said to bound the step.

HEADS = ("equal runs, two at a time", "pairs", "slower", "faster", "no difference", "cannot tell", "visible")


class Group(msgspec.Struct, frozen=True):
    """Equal runs of one training."""

    name: str
    launches: float  # Shares of the step in which the GPU waits: for launches,
    named: float  # and for all else.
    steps_ns: tuple[float, ...]  # The mean step of each.

    @property
    def waits(self) -> float:
        """Share of the step in which the GPU waits."""
        return self.launches + self.named

    @property
    def logs(self) -> list[float]:
        """Of the steps."""
        return list(map(math.log, self.steps_ns))


def published(path: Path = RESULTS) -> list[Group]:
    """What stands there."""
    return msgspec.json.decode(path.read_bytes(), type=list[Group])


def fit(some: Sequence[Group]) -> tuple[Spread, Spread]:
    """How the time differs in which GPUs wait for launches, and for all else: by where that is most of it."""
    named = [one for one in some if one.named >= MOSTLY * one.launches]
    waiting = [(one, of_waiting(one.waits, Spread(1.0, 1)).share) for one in some]
    launches = fitted([[log / share for log in one.logs] for one, share in waiting])
    scaled = [[log / one.named for log in one.logs] for one in named if one.named > FILLED]
    return launches, fitted(scaled, NAMED.freedom)


def table(found: Sequence[Group]) -> str:
    """Verdicts on pairs of equal runs, by what is known of all other trainings."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" + "|--:" * (len(HEADS) - 1) + "|"]
    runs = [(group.waits, one) for group in found for one in _pairs(group, found)]
    for several_ranks, what in ((False, "a CPU, one process"), (True, "a CPU, several processes")):
        lines.append(_row(f"runs on {what}", list(_on_cpu(several_ranks))))
    lines.append(_row("runs on an H100, which bounds the step", [one for waits, one in runs if waits <= FILLED]))
    lines.append(_row("runs on an H100, which waits for its host", [one for waits, one in runs if waits > FILLED]))
    return "\n".join(lines)


def _pairs(group: Group, known: Sequence[Group]) -> Iterator[Range]:
    spread = of_waits(group.launches, group.named, *fit([one for one in known if one is not group]))
    for first, second in combinations(group.steps_ns, 2):
        yield _difference(first, second, spread)


def _on_cpu(several_ranks: bool) -> Iterator[Range]:
    for group in blocks(several_ranks):
        for first, second in combinations(map(math.exp, group), 2):
            yield _difference(first, second, RANKS if several_ranks else CPU)


def _difference(first_ns: float, second_ns: float, spread: Spread) -> Range:
    """How far a run's own mean is off is part of how runs differ."""
    return difference(*(Side((ns,), (Spread(0.0, 1),), spread) for ns in (first_ns, second_ns)))


def _row(what: str, compared: Sequence[Range]) -> str:
    verdicts = [verdict_of(one) for one in compared]
    shares = [f"{verdicts.count(one) / len(verdicts):.1%}" for one in ("slower", "faster", "same", "cannot_tell")]
    visible = statistics.median(visible_share(one) or 1.0 for one in compared)
    return f"| {' | '.join([what, str(len(compared)), *shares, f'{visible:.1%}'])} |"


def sentence(found: Sequence[Group]) -> str:
    """What the table rests on."""
    return (
        f"Runs on an H100: of {len(found) - len(BY_HAND)} planted trainings two or three each,"
        f" of {len(BY_HAND)} public ones two each."
    )


def main() -> None:
    """Analyse the recordings, and write what was found."""
    groups = []
    for trial in trials(cases()):
        truth = trial.truth()
        if trial.on_gpu and trial.is_kept and trial.recording.is_dir() and truth is not None:
            groups.append(Group(trial.case.name, *_waiting(trial.recording), truth.bad_ns))
    groups += [Group(name, *_waiting(Path(sys.argv[1], "h100", name)), known) for name, known in BY_HAND.items()]
    RESULTS.write_bytes(b"[\n  %b]\n" % b",\n  ".join(map(msgspec.json.encode, groups)))
    print(table(published()))
    print(fit(published()))


def _waiting(recording: Path) -> tuple[float, float]:
    run = run_of(diagnose.analyze(recording))
    launches, named = waiting_shares(run.spending, statistics.fmean(run.unprofiled_ns or run.times_ns))
    return round(launches, 4), round(named, 4)


if __name__ == "__main__":
    main()
