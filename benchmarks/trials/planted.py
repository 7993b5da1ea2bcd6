"""Planted faults whose fix can be injected: what `diagnose try` measures of it, and the truth right after it."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import diagnose
from benchmarks.blocks import measured
from benchmarks.planted_cases import Case, Truth, trials
from benchmarks.planted_cases import Trial as Planting
from benchmarks.trials.results import Found, Tried
from benchmarks.verdicts import Figure
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Range, Trial
from diagnose.fixes.catalogue import parsed
from diagnose.fixes.setting import Safety
from diagnose.statistics import CPU, RANKS, Spread
from diagnose.trials import arms, course, results, screening
from diagnose.trials.arms import Size
from diagnose.trials.protocol import Bench
from diagnose.trials.selection import Candidate, between_runs, select, step_of

BUDGET_S = 90  # Of a fix, in each way.
FIRST_ARM_S = 15.0  # What the first run may take.
SHORT_S = 2.0  # Of a script that ends early: all its steps.
LEAST_PAIRS = 2  # As of `diagnose try`.


@dataclass(frozen=True)
class Target:
    """A fault of a case at one level, and the rules that name it."""

    planting: Planting
    fault: str
    rules: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """As of its row."""
        return self.planting.case.name, self.planting.name, self.fault


def targets(some: Iterable[Case], levels: Iterable[str]) -> Iterator[Target]:
    """Faults whose fix surely gains something on a CPU: at the level that the repository keeps, and at these."""
    for planting in trials(list(some)):
        case, truth = planting.case, planting.truth()
        asked = planting.is_kept or planting.level in levels
        if planting.on_gpu or case.is_control or not asked or truth is None or not truth.counts:
            continue
        if case.faults:
            yield from (Target(planting, fault, rules) for fault, rules in sorted(case.faults.items()))
        else:
            yield Target(planting, "", case.expected)


def chosen(target: Target, diagnosis: Diagnosis) -> tuple[str | None, Candidate | str]:
    """The rule that names the fault, and the fix to try or why there is none to try."""
    naming = [finding for finding in diagnosis.findings if finding.rule in target.rules]
    if not naming:
        return None, "no finding names it"
    asked = [str(one.rank_order) for one in naming]
    tried, others = select(naming, step_of(diagnosis), asked, Safety.ROUNDING)
    return (tried[0].rule, tried[0]) if tried else (others[0].rule, others[0].why)


def kept(target: Target) -> tuple[str | None, Candidate | str]:
    """The same by the recording that the repository keeps of the case."""
    case = target.planting.case
    at = next(
        (trial for trial in trials([case]) if trial.is_kept and not trial.on_gpu and trial.recording.is_dir()), None
    )
    return (None, "no recording is kept") if at is None else chosen(target, diagnose.analyze(at.recording))


def row(target: Target) -> Tried:
    """Try the fix of a fault that has one, by the recording that is kept, and measure the truth."""
    rule, fix = kept(target)
    if isinstance(fix, str):
        return _untried(target, rule, fix)
    planting = target.planting
    truth = measured(planting, (target.fault,) if target.fault else ())
    return filled(_with_fix(target, fix), *ways(planting, fix, statistics.median(truth.bad_ns)), truth)


def tried(target: Target, folder: Path, budget_s: float) -> Tried:
    """Try the fix that a recording names: in one process, if it is a switch, and in runs. Without the truth."""
    diagnosis = diagnose.analyze(folder)
    rule, fix = chosen(target, diagnosis)
    manifest = diagnosis.provenance.manifest
    if isinstance(fix, str) or manifest is None:
        return _untried(target, rule, str(fix))
    words = [sys.executable, *manifest.command[1:]]  # Its first is "python" in a recording that is kept.
    with bench_of(words, arms.first_size(manifest), between_runs(diagnosis), budget_s) as bench:
        blocks = _timed(partial(_in_one_process, bench, fix)) if fix.is_switch else None
        bench.base = []
        if not fix.is_switch:
            bench.begin()
        runs = _timed(partial(bench.measure, [fix], fix.predicted))
        base = results.report(bench, (), complete=True).baseline
    known = replace(_with_fix(target, fix), step_ns=None if base is None else base.step_ns.likely)
    return replace(known, blocks=blocks, runs=runs)


def _in_one_process(bench: Bench, fix: Candidate) -> Trial:
    bench.screen([fix], screening.seconds_of(fix))
    return bench.in_blocks[0]


def _timed(measure: Callable[[], Trial]) -> Found:
    begun_s = time.monotonic()
    return as_row(measure(), time.monotonic() - begun_s)


def with_truth(known: Tried, truth: Truth) -> Tried:
    """The row with what its fix truly gains."""
    gain = Figure(truth.speedup, truth.low, truth.high)
    return replace(known, truth=gain, true_step_ns=float(statistics.median(truth.bad_ns)))


def _with_fix(target: Target, fix: Candidate) -> Tried:
    same, predicted = fix.trial in target.planting.case.injections, figure(fix.predicted)
    return replace(_untried(target, fix.rule, ""), injection=fix.trial, predicted=predicted, same_change=same)


def _untried(target: Target, rule: str | None, why: str) -> Tried:
    case, level, fault = target.key
    return Tried(case, level, fault, target.planting.case.fixed, rule, None, False, why)


def filled(known: Tried, step_ns: float | None, long: Found, short: Found, truth: Truth) -> Tried:
    """With what came of its trials, and the truth."""
    in_blocks = bool((fix := parsed(known.injection or "")) and not fix.why_no_switch)
    blocks, runs = (long, None) if in_blocks else (None, long)
    return with_truth(replace(known, step_ns=step_ns, blocks=blocks, runs=runs, short=short), truth)


def command(planting: Planting, *words: str) -> list[str]:
    """What starts these words as a module, on as many ranks as the case has."""
    ranks = ["--standalone", "--nproc-per-node", str(planting.ranks), "-m"] if planting.ranks > 1 else []
    return [sys.executable, "-m", *["torch.distributed.run"] * bool(ranks), *ranks, *words]


@contextmanager
def bench_of(words: Sequence[str], size: Size, between: Spread, budget_s: float = BUDGET_S) -> Iterator[Bench]:
    """A bench as `diagnose try` has it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Bench(words, Path(folder), size, LEAST_PAIRS, budget_s, lambda standing: None, between=between)


def ways(planting: Planting, fix: Candidate, step_ns: float, *words: str) -> tuple[float | None, Found, Found]:
    """The step as it is, and what `diagnose try` finds in a script without end, and in one of two seconds."""
    whole = command(planting, *planting.program(*words))
    size = Size(arms.WARMUP, arms.TIMED, arms.TIMED_S, FIRST_ARM_S)
    found = []
    for end in ((), ("--steps", str(max(round(SHORT_S * 1e9 / step_ns), 1)))):
        with bench_of([*whole, *end], size, usual(planting.ranks)) as bench:
            begun_s = time.monotonic()
            course.run(bench, [fix], lambda kept: None, lambda trial: None, together=False)
            found.append((bench, as_row(results.best(bench)[0], time.monotonic() - begun_s)))
    (bench, long), (_, short) = found
    base = results.report(bench, (), complete=True).baseline
    return None if base is None else base.step_ns.likely, long, short


def usual(ranks: int) -> Spread:
    """How equal runs on the CPU usually differ."""
    return RANKS if ranks > 1 else CPU


def as_row(trial: Trial, seconds: float) -> Found:
    """As rows have it."""
    return Found(trial.verdict, trial.why, trial.pairs, figure(trial.found), seconds)


def figure(known: Range | None) -> Figure | None:
    """As rows have it."""
    return None if known is None else Figure(known.likely, known.low, known.high)
