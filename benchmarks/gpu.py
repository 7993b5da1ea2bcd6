"""What only a GPU can tell: `python -m benchmarks.gpu FOLDER [--device cpu] [--seconds 540]`.

It times trainings with and without a fault, records them, benchmarks their ops and tries their fixes, and keeps each
result in the folder at once. Run it again until nothing is left: what is there already is not made again, and what is
worth most comes first. `python -m benchmarks.h100 --from FOLDER` makes tables of the folder. It needs torch, and a
machine that does nothing else meanwhile. With `--device cpu` all is small: a rehearsal in some minutes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from benchmarks import blocks, h100, recording
from benchmarks.field import Timing, step_ns
from benchmarks.ground_truth import keep, recorded
from benchmarks.planted_cases import ROOT, Trial, cases
from benchmarks.trials import planted, results

GPT = "sample_traces/trainings/small_gpt/train.py"
RUNGS = ((), ("--tf32",), ("--amp",), ("--flash",), ("--fused",), ("--vocab", "50304"), ("--compile",))
"""What each rung of `h100.LADDER` adds to those before it."""

RECORDED_STEPS = 5
PART = ".part"  # Of a folder that is being written.

FIRST = {
    "nccl": "one_bucket_for_all_gradients gradients_reduced_one_by_one gradients_sent_in_fp32 healthy_on_two_ranks",
    "gpu": "convolutions_channels_first launches_of_tiny_kernels optimizer_one_by_one batches_not_pinned"
    " attention_written_out odd_vocabulary activation_written_out anomaly_detection_left_on",
    "gloo": "gradients_reduced_one_by_one",
    "cpu": "optimizer_one_by_one",
}
"""By where cases can be tried, those that come first. On a GPU the others follow; a rehearsal has no others."""


STARTED = ("--accumulate", "1", "--eval-every", "0", "--log-every", "1000000", "--steps", "1000000", "--vocab")
SMALL = ("--layers", "2", "--heads", "2", "--dim", "32", "--context", "32", "--batch-size", "1")
GPT_ARGUMENTS = {"cuda": (*STARTED, "50257"), "cpu": (*STARTED, "257", *SMALL)}
WIDE = {"cuda": ("--dim", "4096", "--layers", "4", "--heads", "32"), "cpu": ()}
"""Of a GPT-2 whose products are large enough for fp8."""

ALL_RUNGS = {"gpt2_5_padded_vocabulary": 5, "gpt2_2_bf16": 2, "gpt2_0_fp32": 0}
RECORDED_RUNGS = {"cuda": ALL_RUNGS, "cpu": {"gpt2_0_fp32": 0}}
TIMINGS = {"cuda": Timing(skip=20, count=40, seconds=10.0), "cpu": Timing(skip=2, count=4, seconds=2.0)}
PAIRS = {"cuda": 3, "cpu": 1}  # Of blocks.
MEASURE_S, BUDGETS_S = {"cuda": 20, "cpu": 5}, {"cuda": planted.BUDGET_S, "cpu": 20}  # To benchmark ops, to try a fix.
SETTINGS = {"cuda": {}, "cpu": {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}}


@dataclass(frozen=True)
class Side:
    """A training with its fault, or without it."""

    program: tuple[str, ...]  # Module and arguments.
    step_ns: Callable[[], int]  # Of one run, without a profiler.
    ranks: int = 1
    steps: int = RECORDED_STEPS


@dataclass(frozen=True)
class Pair:
    """Both."""

    name: str
    rules: tuple[str, ...]  # That name the fault; empty: there is none.
    bad: Side
    fixed: Side
    of_kernels: bool  # The fix changes what ops take.
    first: bool = True  # It is worth more than others.
    planting: Trial | None = None


@dataclass(frozen=True)
class Step:
    """One result that is missing."""

    name: str
    likely_s: float
    make: Callable[[], object]


@dataclass(frozen=True)
class Folder:
    """What was found, and where."""

    path: Path
    device: str

    def found(self) -> h100.Truth:
        """All times so far."""
        if (self.path / "truth.json").exists():
            return h100.truth_of(self.path)
        machine = blocks.machine()
        return h100.Truth(machine.gpu or machine.cpu, machine.torch, {}, {}, machine=machine)

    def keep(self, found: h100.Truth) -> None:
        """Write them all at once, so that a break leaves the file whole."""
        part = self.path / f"truth.json{PART}"
        part.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
        part.replace(self.path / "truth.json")

    def steps(self, pairs: Sequence[Pair]) -> Iterator[Step]:
        """What is missing, the most valuable first."""
        found = self.found()
        for some in ([pair for pair in pairs if pair.first], pairs):
            for blocks_made in (1, PAIRS[self.device]):
                yield from self._ladder(found, blocks_made)
                for pair in some:
                    yield from self._of_pair(pair, found, blocks_made)
            if found.watched_us is None:
                yield Step("cost of watching a step", 60, self._watched)

    def _ladder(self, found: h100.Truth, least: int) -> Iterator[Step]:
        for at, side in enumerate(map(self.rung, range(len(RUNGS)))):
            if len(found.gpt2_ns.get(str(at), ())) < least:
                yield Step(f"GPT-2, rung {at}: time", 30, partial(self._time_rung, at, side))
        for name, at in RECORDED_RUNGS[self.device].items():
            yield from self._recorded(self.rung(at), self.path / name, measured=True)

    def _of_pair(self, pair: Pair, found: h100.Truth, least: int) -> Iterator[Step]:
        folder, known = self.path / "pairs" / pair.name, found.pairs.get(pair.name)
        if known is None or len(known.bad_ns) < least:
            yield Step(f"{pair.name}: time", 30, partial(self._time, pair))
        yield from self._recorded(pair.bad, folder / "bad", measured=pair.bad.ranks == 1)
        if pair.of_kernels:
            yield from self._recorded(pair.fixed, folder / "fixed", measured=False)
        planting = pair.planting
        if planting is None or not pair.rules or planting.case.faults:
            return
        tried = results.published(self.path / "trials.json").planted
        if not any(one.case == pair.name for one in tried) and (folder / "bad").is_dir():
            yield Step(f"{pair.name}: try", BUDGETS_S[self.device], partial(self._try, pair, planting))

    def _recorded(self, side: Side, folder: Path, measured: bool) -> Iterator[Step]:
        if not folder.is_dir():
            name = f"{folder.relative_to(self.path)}: record"
            yield Step(name, 40 + MEASURE_S[self.device] * measured, partial(self._record, side, folder, measured))

    def rung(self, at: int) -> Side:
        """GPT-2 after so many optimisations."""
        return self.gpt(*(word for rung in RUNGS[: at + 1] for word in rung))

    def gpt(self, *words: str) -> Side:
        """GPT-2 with these arguments."""
        program = [*GPT_ARGUMENTS[self.device], *words]
        module = GPT.removesuffix(".py").replace("/", ".")
        return Side((module, *program), partial(step_ns, ROOT, [GPT, *program], TIMINGS[self.device]))

    def _time_rung(self, at: int, side: Side) -> None:
        took_ns, found = side.step_ns(), self.found()
        found.gpt2_ns.setdefault(str(at), []).append(took_ns)
        found.gpt2_ms = {key: median(found.gpt2_ns[key]) / 1e6 for key in sorted(found.gpt2_ns)}
        self.keep(found)

    def _time(self, pair: Pair) -> None:
        found = self.found()
        known = found.pairs.get(pair.name) or h100.Pair("", 1.0, (1.0, 1.0), pair.rules)
        ways = (pair.bad, pair.fixed)[:: 1 - 2 * (len(known.bad_ns) % 2)]
        took_ns = {id(side): side.step_ns() for side in ways}
        bad_ns, fixed_ns = [*known.bad_ns, took_ns[id(pair.bad)]], [*known.fixed_ns, took_ns[id(pair.fixed)]]
        truth = blocks.truth_of(bad_ns, fixed_ns, blocks.machine())
        gain = (truth.speedup, (truth.low, truth.high))
        found.pairs[pair.name] = h100.Pair("", *gain, pair.rules, truth.bad_ns, truth.fixed_ns)
        self.keep(found)

    def _record(self, side: Side, folder: Path, measured: bool) -> None:
        part = folder.with_name(folder.name + PART)
        part.mkdir(parents=True, exist_ok=True)
        with recorded(side.program, side.ranks, side.steps) as made:
            command = [sys.executable, "-m", "diagnose", "measure", "-q", "--seconds", f"{MEASURE_S[self.device]}s"]
            done = subprocess.run([*command, str(made)], stdout=subprocess.DEVNULL) if measured else None
            keep(made.glob("*.json*"), part, unread=())  # Measurements are found by strides and scalars.
        part.rename(folder)
        if done is not None:
            done.check_returncode()

    def _try(self, pair: Pair, planting: Trial) -> None:
        path, target = self.path / "trials.json", planted.Target(planting, "", pair.rules)
        row = planted.tried(target, self.path / "pairs" / pair.name / "bad", BUDGETS_S[self.device])
        results.write(results.published(path).with_row("planted", row), path)

    def _watched(self) -> None:
        found = self.found()
        found.watched_us = recording.both_us(self.device, runs=2)
        self.keep(found)

    def pairs(self) -> Iterator[Pair]:
        """Those that this machine has the devices for: between GPUs, options, and then planted cases."""
        import torch

        on_gpu = self.device == "cuda"
        between, alone = ("nccl", "gpu") if on_gpu else ("gloo", "cpu")
        if not on_gpu or torch.cuda.device_count() > 1:
            yield from self._planted(between, on_gpu)
        wide = [*(word for rung in RUNGS for word in rung), *WIDE[self.device]]
        yield Pair("gpt2_fp8", ("no_fp8",), self.gpt(*wide), self.gpt(*wide, "--fp8"), of_kernels=True)
        yield from self._planted(alone, on_gpu)

    def _planted(self, place: str, on_gpu: bool) -> Iterator[Pair]:
        first = FIRST[place].split()
        some = [case for case in cases() if place in case.needs and (on_gpu or case.name in first)]
        for case in sorted(some, key=lambda case: [*first, case.name].index(case.name)):
            trial = Trial(case, on_gpu, "medium")
            bad, fixed = (
                Side(tuple(trial.program(*way)), partial(_step_ns, trial, way), trial.ranks, case.recorded_steps)
                for way in ([], ["--fixed"] * (not case.is_control))
            )
            rules = tuple(sorted({*case.expected, *(rule for some in case.faults.values() for rule in some)}))
            yield Pair(case.name, rules, bad, fixed, case.kind == "kernel", case.name in first, trial)


def _step_ns(trial: Trial, way: list[str]) -> int:
    return blocks.block(trial, way)[0]


def go_on(folder: Folder, until_s: float) -> tuple[int, dict[str, str]]:
    """Make what is missing and likely fits; how many are left, and what failed. Those that failed before come last."""
    pairs, told = list(folder.pairs()), folder.path / "failed.json"
    before: dict[str, str] = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
    failed = dict[str, str]()
    while True:
        missing = {step.name: step for step in folder.steps(pairs)}  # Some are due in several rounds.
        left = sorted(missing.values(), key=lambda step: step.name in before)
        fits = [step for step in left if step.name not in failed and time.monotonic() + step.likely_s < until_s]
        if not fits:
            return len(left), failed
        step, begun_s = fits[0], time.monotonic()
        try:
            step.make()
            before.pop(step.name, None)
        except Exception as error:
            failed[step.name] = f"{type(error).__name__}: {error}"
        told.write_text(json.dumps({**before, **failed}, indent=1), encoding="utf-8")
        print(f"{step.name}: {failed.get(step.name, f'{time.monotonic() - begun_s:.0f} s')}", flush=True)


def main() -> int:
    """Print a line for each result. Returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=PAIRS, default="cuda")
    parser.add_argument("--seconds", type=float, default=540.0, help="end after so many")
    given = parser.parse_args()
    begun_s = time.monotonic()
    folder = Folder(given.folder.absolute(), given.device)
    os.chdir(ROOT)
    os.environ |= {"DIAGNOSE_NO_LEDGER": "1", **SETTINGS[given.device]}
    folder.path.mkdir(parents=True, exist_ok=True)
    found, here = folder.found(), blocks.machine()
    if (found.device, found.torch) != (here.gpu or here.cpu, here.torch):
        parser.error(f"{folder.path} is of an {found.device} with torch {found.torch}: name another folder.")
    folder.keep(found)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, given.seconds)
    try:
        left, failed = go_on(folder, begun_s + given.seconds)
    except KeyboardInterrupt:
        print("Time is up; run it again.")
        return 0
    print(f"{left} results are missing; run it again." if left else "Nothing is missing.")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
