"""Trials without a finding, decided by the code of `diagnose try`: of nothing, and of a fault as if it were a fix."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.blocks import measured
from benchmarks.planted_cases import Case, trials
from benchmarks.planted_cases import Trial as Planting
from benchmarks.trials.planted import BUDGET_S, figure, program
from benchmarks.trials.results import Claim, Equal, Harmful
from benchmarks.verdicts import Figure
from diagnose.advice.equal_runs import CPU, RANKS
from diagnose.advice.student import Spread
from diagnose.contracts.finding import Fix
from diagnose.contracts.trials import Trial
from diagnose.trials import arms
from diagnose.trials import statistics as looks
from diagnose.trials.arms import Arm, Size
from diagnose.trials.protocol import Bench, Standing
from diagnose.trials.selection import Candidate

TIMED_S = 1.0
"""Of an arm of equal arms: half as long as `diagnose try` times, so that a hundred trials take an hour."""

EACH = 5
"""Trials of nothing on a control, with one budget."""

ARMS = 8
"""That such a trial may take on average; then the budget is spent."""

FIRST_ARM_S = 15.0
"""What the first may take."""

UNLIMITED_S = 1e6

LEAST_PAIRS = 3
"""As of `diagnose try`."""

CLAIMS = ("keep", "slower")
"""Verdicts that say the step has changed."""

HARMFUL = {
    "one_worker_too_few": "patch:DataLoader(num_workers=1)",
    "workers_started_every_epoch": "patch:DataLoader(persistent_workers=False)",
    "gradients_filled_with_zeros": "patch:zero_grad(set_to_none=False)",
    "more_threads_than_cores": "patch:torch.set_num_threads(threads=8)",
}
"""By case: its fault at the medium level, on two cores, as an injection."""


@dataclass
class Recorder(Bench):
    """A bench that remembers all its arms."""

    ran: list[Arm] = field(default_factory=list)

    def _run(self, fixes: Sequence[str]) -> Arm:
        self.ran.append(super()._run(fixes))
        return self.ran[-1]


@dataclass
class Replayed(Bench):
    """A bench whose arms have been run before."""

    past_ns: list[float] = field(default_factory=list)

    def _run(self, fixes: Sequence[str]) -> Arm:
        return past(self.past_ns.pop(0))


def past(step_ns: float) -> Arm:
    """An arm of which only the step is known."""
    return Arm(step_ns, 1, 0, 0.0, None, (), (), 0.0)


def controls(some: Iterable[Case]) -> list[Planting]:
    """Healthy trainings of the CPU, those with the shortest steps first."""
    healthy = [trial for trial in trials(list(some)) if trial.case.is_control and trial.is_kept and not trial.on_gpu]
    return sorted((one for one in healthy if one.recording.is_dir()), key=_recorded_ns)


def _recorded_ns(planting: Planting) -> float:
    ranks = json.loads((planting.recording / "manifest.json").read_text(encoding="utf-8"))["ranks"]
    return statistics.fmean(ranks[0]["unprofiled"]["wall_ns"])


def equal(planting: Planting, count: int = EACH) -> Equal:
    """Trials of nothing on a healthy control, in one budget as `diagnose try` shares it."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Recorder(
            _command(planting, fixed=False), Path(folder), _size(TIMED_S), LEAST_PAIRS, UNLIMITED_S, _quiet
        )
        bench.between = usual(planting.ranks)
        bench.begin()
        spent_s = bench.budget_s - bench.left_s
        bench.budget_s = spent_s + count * ARMS * bench.size.expected_s
        claims = [_claim(bench.measure([], None, rest)) for rest in reversed(range(count))]
    arms_ns = tuple(one.step_ns for one in bench.ran)
    overhead_s = statistics.median(one.seconds - one.steps * one.step_ns / 1e9 for one in bench.ran)
    replayed = replay(arms_ns, bench.between)
    changed = sum(one.verdict in CLAIMS for one in replayed)
    return Equal(planting.case.name, arms_ns, overhead_s, tuple(claims), len(replayed), changed)


def usual(ranks: int) -> Spread:
    """How equal runs on the CPU usually differ."""
    return RANKS if ranks > 1 else CPU


def replay(arms_ns: Sequence[float], between: Spread) -> list[Trial]:
    """The trials that arms would have made, one from each pair on; after the last pair comes the first.

    None where there are so few pairs that one of these trials could meet a pair twice.
    """
    two, pairs = arms_ns[:2], [list(pair) for pair in zip(arms_ns[2::2], arms_ns[3::2], strict=False)]
    if len(pairs) < looks.MOST_PAIRS:
        return []
    found = []
    for start in range(len(pairs)):
        bench = Replayed([], Path(), Size(1, 1, 0.0, 0.0), LEAST_PAIRS, UNLIMITED_S, _quiet, list(map(past, two)))
        bench.between = between
        bench.past_ns = [one for pair in (*pairs[start:], *pairs[:start]) for one in pair]
        found.append(bench.measure([], None))
    return found


def harmful(planting: Planting, injection: str) -> Harmful:
    """Inject a fault into the fixed training, and measure what the switch gains."""
    with tempfile.TemporaryDirectory() as folder:
        size = _size(arms.TIMED_S)
        bench = Bench(_command(planting, fixed=True), Path(folder), size, LEAST_PAIRS, BUDGET_S, _quiet)
        bench.between = usual(planting.ranks)
        bench.begin()
        fault = Candidate("fault", 1, Fix(planting.case.planted, trial=injection), injection, None)
        trial = bench.measure([fault], None)
    truth = measured(planting)
    return Harmful(
        case=planting.case.name,
        level=planting.name,
        injection=injection,
        verdict=trial.verdict,
        why=trial.why,
        step_ns=statistics.median(one.step_ns for one in bench.without),
        measured=figure(trial.measured),
        truth=Figure(1 / truth.speedup, 1 / truth.high, 1 / truth.low),
    )


def _claim(trial: Trial) -> Claim:
    return Claim(trial.verdict, trial.why, trial.pairs, figure(trial.measured))


def _command(planting: Planting, fixed: bool) -> list[str]:
    words = [sys.executable]
    if planting.ranks > 1:
        words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(planting.ranks)]
    return [*words, "-m", *program(planting), *["--fixed"] * fixed]


def _size(timed_s: float) -> Size:
    return Size(arms.WARMUP, arms.TIMED, timed_s, FIRST_ARM_S)


def _quiet(standing: Standing) -> None:
    """Nobody reads along."""
