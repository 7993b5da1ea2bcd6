"""What is said of recordings on GPUs, and what is true: `python -m benchmarks.h100 --from FOLDER [--write]`.

FOLDER is what `benchmarks.gpu` has made on one machine, or a corpus's h100/: the same training after one optimisation
and the next, pairs of trainings without and with a fault, and trainings by others. Their truth was timed without a
profiler. h100.json has what came out, by machine. Planted cases that an H100 ran are in sample_traces/, and in
benchmarks/accuracy.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec
import numpy as np

import diagnose
from benchmarks import changed_ops, recorded_samples
from benchmarks.accuracy import predicted
from benchmarks.accuracy_tables import LARGE, counted, errors_of, table
from benchmarks.planted_cases import WORTH, Machine
from benchmarks.trials import results, tables
from benchmarks.trials.results import Tried
from benchmarks.verdicts import Figure, Row, findings, named, promised
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Kind, RankedFinding
from diagnose.fixes.setting import Safety
from diagnose.replay.saving import Basis
from diagnose.trace.manifest import EventCost, Manifest, Timed

RESULTS = Path(__file__).with_name("h100.json")
CALLS, ON_DEVICE = ("cuda_runtime", "cuda_driver"), ("kernel", "gpu_memcpy", "gpu_memset")  # Kinds of events.
T = TypeVar("T")

NAMES = {
    "precision": ("tf32_off", "no_mixed_precision"),
    "attention": ("unfused_attention",),
    "launch": ("launch_bound",),
    "copy": ("pageable_copies", "host_compute"),  # The one that was measured makes its tensor on the device instead.
    "sync": ("scalar_syncs",),
    "optimizer": ("unfused_optimizer",),
    "healthy": (),
}
"""What a pair differs in -> the rules that name it."""

NOT_MEASURED = ("no_mixed_precision",)  # In a pair, of the rules that name it: that one is of TF32.

LADDER = (
    ("TF32", ("tf32_off",)),
    ("bf16 autocast", ("no_mixed_precision",)),
    ("fused attention", ("unfused_attention",)),
    ("fused AdamW", ("unfused_optimizer",)),
    ("a vocabulary of 50,304", ("misaligned_dimensions",)),
    ("torch.compile", ("launch_bound", "unfused_pointwise")),
)
"""The optimisations of GPT-2, one after the other, and the rules that advise them."""

RUNGS = {"gpt2_0_fp32": 0, "gpt2_1_tf32": 1, "gpt2_2_bf16": 2, "gpt2_2_bf16_nsys": 2, "gpt2_5_padded_vocabulary": 5}
"""Recordings -> how many of these were made."""


class Truth(msgspec.Struct):
    """How long steps take without a profiler, as h100/truth.json has it."""

    device: str
    torch: str
    pairs: dict[str, Pair]
    gpt2_ms: dict[str, float]
    gpt2_ns: dict[str, list[int]] = {}  # Of each run.
    machine: Machine | None = None
    watched_us: tuple[float, float] | None = None  # A step that does nothing, alone and watched by the agent.


class Pair(msgspec.Struct):
    """What a fix gains in a training."""

    expect: str  # A key of `NAMES`; empty: `rules` name the fault.
    speedup: float
    speedup_range: tuple[float, float]
    rules: tuple[str, ...] = ()
    bad_ns: tuple[int, ...] = ()  # Of each run.
    fixed_ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class PairRow:
    """What was said of a training, and what is true."""

    case: str
    expect: str
    found: tuple[str, ...]  # Rules of the findings, in order; minor ones are none.
    promised: float  # Share of the step that the most promising fault would save.
    place: int | None
    measured: Figure
    predicted: Figure | None  # By the finding at `place`.
    option: bool = False  # As in Row.


@dataclass(frozen=True)
class RungRow:
    """What was said of one optimisation in one recording of the ladder."""

    recording: str
    fix: str
    place: int | None  # Of the finding that advises it; None: none does. The rest is of it.
    low_ms: float | None
    likely_ms: float | None
    high_ms: float | None  # What it saves alone.
    after_above_ms: float | None  # What it adds once those above it are fixed.
    measured_ms: float  # What it saved in its turn: once all before it in LADDER were made.
    step_ms: float = 0.0  # Of the recording, as timed without a profiler.
    basis: Basis | None = None  # Of what it saves alone.


@dataclass(frozen=True)
class Recorded:
    """What recording costs."""

    recording: str
    unprofiled_ms: float
    first: str  # The rule of the first finding.
    by_part: dict[str, float]  # A part of the recording -> its steps over unprofiled ones.
    op_us: tuple[float, float] | None = None
    """What a recorded op costs the host, as the agent measured it, and by how much longer steps are."""
    call_us: tuple[float, float] | None = None  # The same of a call of the device's runtime.


@dataclass(frozen=True)
class OnGpu:
    """All that was found out."""

    device: str
    torch: str
    rungs: tuple[RungRow, ...]
    pairs: tuple[PairRow, ...]
    recorded: tuple[Recorded, ...]
    measured: tuple[changed_ops.Row, ...] = ()
    trials: tuple[Tried, ...] = ()
    machine: Machine | None = None
    watched_us: tuple[float, float] | None = None  # As in `Truth`.


def published() -> tuple[OnGpu, ...]:
    """What stands in benchmarks/h100.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[OnGpu, ...])


def merged(known: Sequence[OnGpu], new: OnGpu) -> tuple[OnGpu, ...]:
    """With what is new of a machine: rows of the same name take the place of others."""
    old = next((one for one in known if (one.device, one.torch) == (new.device, new.torch)), None)
    if old is None:
        return *known, new
    both = replace(
        new,
        rungs=_joined(old.rungs, new.rungs, lambda one: (one.recording, one.fix)),
        pairs=_joined(old.pairs, new.pairs, lambda one: one.case),
        recorded=_joined(old.recorded, new.recorded, lambda one: one.recording),
        measured=_joined(old.measured, new.measured, lambda one: one.name),
        trials=_joined(old.trials, new.trials, lambda one: one.key),
        machine=new.machine or old.machine,
        watched_us=new.watched_us or old.watched_us,
    )
    return tuple(both if one is old else one for one in known)


def _joined(old: Iterable[T], new: Iterable[T], key: Callable[[T], object]) -> tuple[T, ...]:
    return tuple({key(one): one for one in (*old, *new)}.values())


def truth_of(folder: Path) -> Truth:
    """What was timed, of a corpus's h100/."""
    return msgspec.json.decode((folder / "truth.json").read_bytes(), type=Truth)


def judged(folder: Path) -> OnGpu:
    """What is said today of the recordings in a corpus's h100/."""
    truth, rungs, costs = truth_of(folder), list[RungRow](), list[Recorded]()
    rows, measured = list[PairRow](), list[changed_ops.Row]()
    for path in sorted(one.parent for one in folder.glob("*/manifest.json")):
        said = diagnose.analyze(path)
        rungs += rungs_of(path.name, said, truth)
        costs += cost_of(path.name, said, path)
    for name in truth.pairs:
        path = folder / "pairs" / name / "bad"
        if path.is_dir():
            said = diagnose.analyze(path)
            rows.append(pair_of(name, said, truth))
            costs += cost_of(name, said, path)
            measured += measured_of(rows[-1], said, path, truth.pairs[name].rules)
    rest = (tuple(measured), tuple(_with_truths(folder, truth)), truth.machine, truth.watched_us)
    return OnGpu(truth.device, truth.torch, tuple(rungs), tuple(rows), tuple(costs), *rest)


def _with_truths(folder: Path, truth: Truth) -> Iterator[Tried]:
    for one in results.published(folder / "trials.json").planted:
        if (pair := truth.pairs.get(one.case)) is not None:
            yield replace(one, truth=Figure(pair.speedup, *pair.speedup_range), true_step_ns=median(pair.bad_ns))


def rungs_of(recording: str, said: Diagnosis, truth: Truth) -> Iterator[RungRow]:
    """What was said of each optimisation that is left to make; nothing of a recording that is not of the ladder."""
    steps_ms, done = list(truth.gpt2_ms.values()), RUNGS.get(recording, len(LADDER))
    if len(steps_ms) <= len(LADDER):
        return
    for at, (fix, rules) in enumerate(LADDER[done:], start=done):
        begins = done if fix == "bf16 autocast" else at  # It takes the place of TF32.
        measured, step_ms = steps_ms[begins] - steps_ms[at + 1], steps_ms[done]
        one = next((finding for finding in said.findings if _advises(finding, rules)), None)
        if one is None:
            yield RungRow(recording, fix, None, None, None, None, None, measured, step_ms)
            continue
        saving = one.saving
        after = None if saving.after_above_ns is None else saving.after_above_ns / 1e6
        low, likely, high = (ns / 1e6 for ns in (saving.low_ns, saving.likely_ns, saving.high_ns))
        yield RungRow(recording, fix, one.rank_order, low, likely, high, after, measured, step_ms, saving.basis)


def _advises(finding: RankedFinding, rules: Collection[str]) -> bool:
    """Whether a finding's first fix is that of these rules, not one of several precisions."""
    precision = finding.fixes and finding.fixes[0].safety is Safety.PRECISION
    return bool({finding.rule} & set(rules) if precision else set(finding.rules) & set(rules))


def cost_of(recording: str, said: Diagnosis, folder: Path) -> Iterator[Recorded]:
    """What recording cost, where the step was timed without it."""
    manifest = said.provenance.manifest
    rank = None if manifest is None else manifest.ranks[0]
    if rank is not None and (ratios := recorded_samples.ratios(rank)):
        alone_us = median(rank.unprofiled.wall_ns) / 1e3 if rank.unprofiled else 0.0
        cost, without_ops = rank.event_cost or EventCost(), ratios.get("device_timing", 1.0)
        longer_us = (without_ops - 1.0) * alone_us, (ratios.get("timing", 1.0) - without_ops) * alone_us
        first = next((finding.rule for finding in findings(said)), "")
        yield Recorded(
            recording,
            alone_us / 1e3,
            first,
            ratios,
            _each_us(cost.op_ns, longer_us[1], folder, rank.trace, rank.timing, ("cpu_op",)),
            _each_us(cost.call_ns, longer_us[0], folder, rank.device, rank.device_timing, CALLS),
        )


def _each_us(
    said_ns: float | None, longer_us: float, folder: Path, file: str | None, timed: Timed | None, kinds: Sequence[str]
) -> tuple[float, float] | None:
    """By how much longer steps are for each event of these kinds. Truest where the host bounds the step."""
    count = 0 if file is None or timed is None else len(_events(folder / file, kinds)) / len(timed.wall_ns)
    return (said_ns / 1e3, longer_us / count) if said_ns and count and longer_us > 0 else None  # Else it is noise.


def _events(trace: Path, kinds: Sequence[str]) -> list[dict[str, float]]:
    if trace.suffix != ".gz":
        return []
    return [one for one in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"] if one.get("cat") in kinds]


def measured_of(pair: PairRow, said: Diagnosis, folder: Path, rules: Sequence[str]) -> Iterator[changed_ops.Row]:
    """What is said without and by what `diagnose measure` found, if it was asked."""
    found, true = said.measured, pair.measured
    if found is None:
        return
    with TemporaryDirectory() as scratch:
        without = Path(scratch, "run")
        shutil.copytree(folder, without, ignore=shutil.ignore_patterns("*.costs.*"))
        before, after = (changed_ops.said(one, rules) for one in (diagnose.analyze(without), said))
    counts, fixed_ms = true.low > WORTH, _busy_ms(folder.with_name("fixed"))
    kernels = _busy_ms(folder) / fixed_ms if fixed_ms else None
    costs = (found.ops, found.not_measured, found.seconds)
    yield changed_ops.Row(pair.case, true, counts, before, after, *costs, kernels)


def _busy_ms(folder: Path) -> float:
    """What kernels, copies and memsets of a recorded step add up to; 0 without a recording or a device."""
    path = folder / "manifest.json"
    if not path.exists():
        return 0.0
    rank = msgspec.json.decode(path.read_bytes(), type=Manifest).ranks[0]
    if rank.trace is None or rank.timing is None:
        return 0.0
    return sum(one["dur"] for one in _events(folder / rank.trace, ON_DEVICE)) / len(rank.timing.wall_ns) / 1e3


def pair_of(case: str, said: Diagnosis, truths: Truth) -> PairRow:
    """What was said of the training without the fix."""
    truth, shown, step_ns = truths.pairs[case], findings(said), said.step_ns or 1
    hit, place = named(truth.rules or NAMES.get(truth.expect, ()), shown)
    return PairRow(
        case=case,
        expect=truth.expect if truth.expect or truth.rules else "healthy",
        found=tuple(one.rule for one in shown),
        promised=promised(shown),
        place=place,
        measured=Figure(truth.speedup, *truth.speedup_range),
        predicted=None if hit is None or hit.rule in NOT_MEASURED else predicted(hit, step_ns),
        option=hit is not None and hit.kind is Kind.OPTION,
    )


def ladder(found: OnGpu) -> str:
    """Each recording of GPT-2, with what was said of each optimisation that was left to make, and of all together."""
    rows = []
    for rung in [*found.rungs, *together(found)]:
        range_ms = "" if rung.low_ms is None else f"{rung.low_ms:.1f} to {rung.high_ms:.1f}"
        cells = [_ms(rung.likely_ms), range_ms, _ms(rung.after_above_ms), _ms(rung.measured_ms)]
        rows.append([f"`{rung.recording}`", rung.fix, str(rung.place or "-"), *cells])
    head = [
        *("recording", "optimisation", "place", "alone, ms", "range", "after those above, ms"),
        "measured in its turn, ms",
    ]
    return table(head, rows, texts=2)


def together(found: OnGpu) -> Iterator[RungRow]:
    """Of each recording, all that was advised: the sums of what each adds to those above it, and in its turn."""
    for recording in dict.fromkeys(rung.recording for rung in found.rungs):
        some = [rung for rung in found.rungs if rung.recording == recording and rung.after_above_ms is not None]
        if len(some) < 2:
            continue
        said, measured = sum(rung.after_above_ms or 0.0 for rung in some), sum(rung.measured_ms for rung in some)
        yield RungRow(recording, f"all {len(some)} that are advised", None, None, None, None, said, measured)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def pairs(found: OnGpu) -> str:
    """Each pair: what it differs in, and what was said."""
    rows = []
    for pair in found.pairs:
        said = "-" if pair.predicted is None else f"{pair.predicted.likely:.2f} x ({_range(pair.predicted)})"
        true = f"{pair.measured.likely:.2f} x ({_range(pair.measured)})"
        first = f"`{pair.found[0]}`" if pair.found else "none"
        rows.append([f"`{pair.case}`", first, str(pair.place or "-"), true, said])
    return table(["pair", "first finding says", "place", "measured", "predicted"], rows, texts=2)


def _range(one: Figure) -> str:
    return f"{one.low:.2f} to {one.high:.2f}"


def recorded(found: OnGpu) -> str:
    """How much longer steps take while they are recorded."""
    rows = []
    for one in found.recorded:
        parts = [f"{one.by_part[part]:.2f}" if part in one.by_part else "-" for part in recorded_samples.PARTS]
        costs = ["-" if cost is None else "{1:.1f} ({0:.1f})".format(*cost) for cost in (one.op_us, one.call_us)]
        first = f"`{one.first}`" if one.first else "none"
        rows.append([f"`{one.recording}`", f"{one.unprofiled_ms:.1f}", *parts, *costs, first])
    head = ["training", "step without the profiler, ms", *recorded_samples.PARTS.values()]
    text = table([*head, "us per op (agent)", "us per call (agent)", "first finding"], rows)
    if found.watched_us is None:
        return text
    return text + "\n\nAn empty step takes {:.0f} us alone, and {:.0f} us under `diagnose profile`.".format(
        *found.watched_us
    )


def measured(found: OnGpu) -> str:
    """What `diagnose measure` makes of prices."""
    if not any(one.counts for one in found.measured):
        return ""
    kernels = [f"`{one.name}` {one.kernels:.2f} x" for one in found.measured if one.kernels]
    told = f"Kernels of the recordings with and without the fault: {', '.join(kernels)}." if kernels else ""
    return f"{changed_ops.table(found.measured)}\n\n{told}".rstrip()


def tried(found: OnGpu) -> str:
    """What `diagnose try` finds of fixes."""
    rows = [one for one in found.trials if one.tried]
    return tables.planted(rows) if rows else ""


def each(table_of: Callable[[OnGpu], str], found: Sequence[OnGpu]) -> str:
    """A table for each machine that has rows for it."""
    made = [(one, table_of(one)) for one in found]
    told = [f"{_where(one)}:\n\n{text}" for one, text in made if text]
    return "\n\n".join(told) or "No GPU has run this yet."


def _where(one: OnGpu) -> str:
    words = [one.device, f"torch {one.torch}"]
    if one.machine is not None:
        words += [f"driver {one.machine.driver}"] * bool(one.machine.driver) + [f"{one.machine.cores} cores"]
        words += [f"{one.machine.clock_mhz} of {one.machine.most_clock_mhz} MHz"] * bool(one.machine.clock_mhz)
    return ", ".join(words)


def in_short(some: Sequence[OnGpu], planted: Sequence[Row]) -> list[str]:
    """Of pairs and planted cases: faults and options named first, in three, healthy ones with a fault, error."""
    pairs = [pair for found in some for pair in found.pairs if pair.expect != "healthy"]
    healthy = [pair.promised for found in some for pair in found.pairs if pair.expect == "healthy"]
    healthy += [one.promised for one in planted if one.measured is None]
    faults: list[PairRow | Row] = [*pairs, *(one for one in planted if one.measured is not None)]
    wrong = sum(promised >= LARGE for promised in healthy)
    off = np.abs(errors_of([(fault.predicted, fault.measured) for fault in faults]))
    return [
        *counted([(one.place, one.option) for one in faults]),
        f"{wrong} of {len(healthy)}",
        f"{np.median(off):.0%}",
    ]


def main() -> None:
    """Judge all recordings, print the tables, and keep what they are made of if asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="folder", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="into benchmarks/h100.json")
    given = parser.parse_args()
    found = judged(given.folder)
    print("\n\n".join(filter(None, (table_of(found) for table_of in (ladder, pairs, recorded, measured, tried)))))
    if given.write:
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(merged(published(), found)), indent=1) + b"\n")


if __name__ == "__main__":
    main()
