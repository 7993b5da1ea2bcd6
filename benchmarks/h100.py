"""What is said of our recordings on an H100, and what is true: `python -m benchmarks.h100 CORPUS [--write]`.

They are in the corpus, as they are large: the same training after one optimisation and the next, pairs of trainings
without and with a fault, and trainings by others. Their truth was timed without a profiler. h100.json has what came
out. Planted cases that an H100 ran are in sample_traces/, and in benchmarks/accuracy.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import diagnose
from benchmarks.accuracy import predicted
from benchmarks.accuracy_tables import LARGE, counted, errors_of, table
from benchmarks.verdicts import Figure, Row, findings, named, promised
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Kind, RankedFinding
from diagnose.fixes.setting import Safety
from diagnose.replay.saving import Basis

RESULTS = Path(__file__).with_name("h100.json")

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


class Pair(msgspec.Struct):
    """What a fix gains in a training."""

    expect: str
    speedup: float
    speedup_range: tuple[float, float]


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
    recorded_ms: float
    ratio: float
    first: str  # The rule of the first finding.


@dataclass(frozen=True)
class OnGpu:
    """All that was found out."""

    device: str
    torch: str
    rungs: tuple[RungRow, ...]
    pairs: tuple[PairRow, ...]
    recorded: tuple[Recorded, ...]


def published() -> OnGpu:
    """What stands in benchmarks/h100.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=OnGpu)


def truth_of(folder: Path) -> Truth:
    """What was timed, of a corpus's h100/."""
    return msgspec.json.decode((folder / "truth.json").read_bytes(), type=Truth)


def judged(folder: Path) -> OnGpu:
    """What is said today of the recordings in a corpus's h100/."""
    truth, rungs, costs = truth_of(folder), list[RungRow](), list[Recorded]()
    for path in sorted(one.parent for one in folder.glob("*/manifest.json")):
        said = diagnose.analyze(path)
        rungs += rungs_of(path.name, said, truth)
        costs += cost_of(path.name, said)
    rows = [pair_of(name, diagnose.analyze(folder / "pairs" / name / "bad"), truth) for name in truth.pairs]
    return OnGpu(truth.device, truth.torch, tuple(rungs), tuple(rows), tuple(costs))


def rungs_of(recording: str, said: Diagnosis, truth: Truth) -> Iterator[RungRow]:
    """What was said of each optimisation that is left to make; nothing of a recording that is not of the ladder."""
    steps_ms, done = list(truth.gpt2_ms.values()), RUNGS.get(recording, len(LADDER))
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


def cost_of(recording: str, said: Diagnosis) -> Iterator[Recorded]:
    """What recording cost, where the step was timed without it."""
    steps = said.steps
    if steps is not None and steps.unprofiled_step_time_ns is not None:
        alone, mean = steps.unprofiled_step_time_ns, steps.step_time_ns.mean
        first = next((finding.rule for finding in findings(said)), "")
        yield Recorded(recording, alone / 1e6, mean / 1e6, mean / alone, first)


def pair_of(case: str, said: Diagnosis, truths: Truth) -> PairRow:
    """What was said of the training without the fix."""
    truth, shown, step_ns = truths.pairs[case], findings(said), said.step_ns or 1
    hit, place = named(NAMES[truth.expect], shown)
    return PairRow(
        case=case,
        expect=truth.expect,
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
    rows = [
        [f"`{one.recording}`", f"{one.unprofiled_ms:.1f}", f"{one.recorded_ms:.1f}", f"{one.ratio:.2f}", first]
        for one in found.recorded
        for first in [f"`{one.first}`" if one.first else "none"]
    ]
    return table(["training", "step without the profiler, ms", "recorded, ms", "ratio", "first finding"], rows)


def in_short(found: OnGpu, planted: Sequence[Row]) -> list[str]:
    """Of pairs and planted cases: faults and options named first, in three, healthy ones with a fault, error."""
    pairs = [pair for pair in found.pairs if pair.expect != "healthy"]
    healthy = [pair.promised for pair in found.pairs if pair.expect == "healthy"]
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
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--write", action="store_true", help="into benchmarks/h100.json")
    given = parser.parse_args()
    found = judged(given.corpus / "h100")
    print("\n\n".join([ladder(found), pairs(found), recorded(found)]))
    if given.write:
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    main()
