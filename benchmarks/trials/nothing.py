"""Trials without a finding, decided by the code of `diagnose try`: of nothing, and of a fault as if it were a fix."""

import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.blocks import measured
from benchmarks.planted_cases import Case, Truth, trials
from benchmarks.planted_cases import Trial as Planting
from benchmarks.trials.planted import FIRST_ARM_S, LEAST_PAIRS, as_row, bench_of, command, filled, usual, ways
from benchmarks.trials.results import Nothing, Runs, Tried
from diagnose.contracts.finding import Fix
from diagnose.contracts.trials import Trial
from diagnose.statistics import Spread
from diagnose.trials import arms, screening
from diagnose.trials.arms import Arm, Size
from diagnose.trials.protocol import Bench
from diagnose.trials.selection import Candidate

EACH = 3  # Switches that do nothing, in one process of a control.
PAIRS = 8  # Of a trial of nothing, at most.
RUNS = 2 * PAIRS  # Of a control as it is.
RUN_S = 1.0  # That they are timed: half as long as by `diagnose try`, so that all take minutes.

UNLIMITED_S = 1e6

HARMFUL = {
    "one_worker_too_few": "patch:DataLoader(num_workers=1)",
    "workers_started_every_epoch": "patch:DataLoader(persistent_workers=False)",
    "gradients_filled_with_zeros": "patch:zero_grad(set_to_none=False)",
    "more_threads_than_cores": "patch:torch.set_num_threads(threads=8)",
}
"""By case: its fault at the medium level, on two cores, as an injection."""


@dataclass
class Replayed(Bench):
    """A bench whose arms have been run before."""

    past_ns: list[float] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """One for each run that is left."""
        return len(self.past_ns)

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


def nothing(planting: Planting) -> Nothing:
    """Screen switches that do nothing, in one process of a healthy control."""
    words = command(planting, "benchmarks.trials.switch_of_nothing", *planting.program())
    some = [_fix(f"patch:torch.set_num_threads(threads={2 + number})") for number in range(EACH)]
    begun_s = time.monotonic()
    with bench_of(words, _size(arms.TIMED_S), usual(planting.ranks)) as bench:
        bench.screen(some, sum(map(screening.seconds_of, some)))
    seconds = (time.monotonic() - begun_s) / EACH
    blocks = tuple(as_row(trial, seconds) for trial in bench.in_blocks)
    return Nothing(planting.case.name, statistics.median(bench.blocks_as_it_is), blocks)


def runs(planting: Planting) -> Runs:
    """Run a healthy control as it is."""
    size, ran = _size(RUN_S), list[Arm]()
    with tempfile.TemporaryDirectory() as folder:
        while len(ran) < RUNS:
            ran.append(arms.run_arm(command(planting, *planting.program()), Path(folder, f"arm{len(ran)}"), size, ()))
            size = arms.next_size(size, ran[0])
    overhead_s = statistics.median(one.seconds - one.steps * one.step_ns / 1e9 for one in ran)
    return Runs(planting.case.name, planting.ranks, tuple(one.step_ns for one in ran), overhead_s)


def replay(arms_ns: Sequence[float], between: Spread) -> list[Trial]:
    """The trials of nothing that arms would have made, one from each pair on; after the last pair comes the first.

    None where there are fewer pairs than PAIRS.
    """
    pairs, made = [list(pair) for pair in zip(arms_ns[::2], arms_ns[1::2], strict=False)], []
    if len(pairs) < PAIRS:
        return []
    random.seed(0)  # Which of a pair comes first is drawn.
    for start in range(len(pairs)):
        past_ns = [one for pair in (*pairs[start:], *pairs[:start]) for one in pair]
        bench = Replayed([], Path(), Size(1, 1, 0.0, 1.0), LEAST_PAIRS, UNLIMITED_S, lambda standing: None)
        bench.between, bench.past_ns = between, past_ns
        made.append(bench.measure([], None))
    return made


def harmful(planting: Planting, injection: str) -> Tried:
    """Inject a fault into the fixed training, and measure what the switch gains."""
    known = Tried(planting.case.name, planting.name, "", planting.case.planted, None, injection, True, "")
    truth = measured(planting)
    turned = Truth(truth.fixed_ns, truth.bad_ns, 1 / truth.speedup, 1 / truth.high, 1 / truth.low, truth.machine)
    return filled(known, *ways(planting, _fix(injection), statistics.median(truth.fixed_ns), "--fixed"), turned)


def _fix(injection: str) -> Candidate:
    return Candidate("fault", 1, Fix("", trial=injection), injection, None)


def _size(timed_s: float) -> Size:
    return Size(arms.WARMUP, arms.TIMED, timed_s, FIRST_ARM_S)
