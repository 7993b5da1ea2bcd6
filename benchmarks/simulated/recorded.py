"""What the recorder's own cost changes: `python -m benchmarks.simulated.recorded [--write] [--only NAME]`.

Trainings of the simulated machine are recorded as `diagnose profile` records on a GPU: in parts, each of other steps.
Each event costs the host time, and the more, the slower the machine's clock is. The truth has no recorder.
`--write` puts the rows into benchmarks/simulated_recorded.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from benchmarks.accuracy_tables import table
from benchmarks.simulated import kineto
from benchmarks.simulated.cases import Case, cases
from benchmarks.simulated.judge import MS, WORTH, diagnosed, place_of, plain, predicted, profiled, rounded, true_ms
from benchmarks.simulated.machine import SLOW, Recorder, Recording, busy_ns, step_ns
from benchmarks.simulated.manifest import event_cost, manifest, timed
from benchmarks.simulated.training import Training

RESULTS = Path(__file__).parent.with_name("simulated_recorded.json")
DISTORTIONS = (1.0, 1.5, 2.0, 2.5)
"""How many times as long steps that the host bounds take while ops are recorded."""
PARTS = (False, True)
"""Whether steps were recorded without ops as well."""
TIMED = 10
"""Steps without the profiler, before the recordings and after them."""
LEAST_MS = 1e-3
"""That is left of a step, so that a speed-up is a number."""
FULL = 0.9
"""Share of the step from which on a device that is busy bounds it."""
FIXED = " as it should be"
"""After the name of a case without its fault."""
CLOCKS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""How slow clocks are that others are interpolated between."""
CHOSEN = {
    "small_transformer_in_eager": "small",
    "recommender_in_eager": "medium",
    "small_transformer_not_compiled": "medium",
    "hooks_on_every_module": "small",
    "metrics_in_python_between_steps": "medium",
    "heads_in_a_loop": "small",
    "gradients_set_to_zero": "medium",
    "adamw_parameter_by_parameter": "small",
    "items_and_a_loop_over_parameters": "small",
    "sixty_scalars_a_batch": "small",
    "tokens_of_experts_counted": "small",
    "sgd_parameter_by_parameter": "small",
    "dense_features_in_double": "medium",
    "gradients_of_a_large_model_set_to_zero": "small",
    "weights_of_a_gpt_cast_every_step": "small",
    "adamw_as_foreach": "small",
    "layers_checkpointed_on_h100": "small",
    "gelu_written_out_on_h100": "small",
    "tables_with_dense_gradients": "medium",
    "pictures_copied_before_use": "small",
    f"sgd_parameter_by_parameter{FIXED}": "small",
    f"adamw_as_foreach{FIXED}": "small",
    f"layers_checkpointed_on_h100{FIXED}": "small",
    "compiled_pictures": "small",
}
"""Cases and their sizes: some that the host bounds by its events, and some that the device bounds by little."""


@dataclass(frozen=True)
class Truth:
    """Of a case, in ms."""

    case: str
    step: float
    fixed: float | None
    """Without the largest fault; None if there is none, or it costs next to nothing."""
    expected: tuple[str, ...]
    busy: float
    """Share of the step for which the device works."""

    @property
    def by_device(self) -> bool:
        """Whether the device bounds the step."""
        return self.busy >= FULL


@dataclass(frozen=True)
class Row:
    """What is said of a case, recorded at a distortion in certain parts. Times in ms."""

    truth: Truth
    distortion: float
    in_parts: bool
    ops: float
    """Steps in which ops were recorded, over those without the profiler."""
    device: float
    """The same where calls and device work alone were."""
    step: float
    """That savings are of."""
    saved: float | None
    """By the finding that names the fault."""
    place: int | None
    """Of that, from 1."""
    found: tuple[str, ...]

    @property
    def left(self) -> float | None:
        """The step that is said to be left by the fix over the true one; None if the fault is not named."""
        if self.saved is None or self.truth.fixed is None:
            return None
        return max(self.step - self.saved, LEAST_MS) / self.truth.fixed

    @property
    def gain(self) -> float | None:
        """The speed-up that is said over the true one."""
        return None if self.left is None else self.step / self.truth.step / self.left

    @property
    def is_falsely_launch_bound(self) -> bool:
        """Whether launches are blamed though the device bounds the step."""
        return self.truth.by_device and "launch_bound" in self.found


def case_of(name: str) -> Case:
    """The case, without its fault if the name says so."""
    found = next(one for one in cases() if one.name == name.removesuffix(FIXED))
    return replace(found, faults=(), name=name) if name.endswith(FIXED) else found


def truth_of(name: str) -> Truth:
    """Simulated without a profiler."""
    case, size = case_of(name), CHOSEN[name]
    training = case.training(size)
    step = step_ns(plain(training, case.recorded)) / MS
    fixed = [true_ms(case.training(size, fault), case.recorded) / case.samples for fault in case.faults]
    busy = busy_ns(profiled(training, case.recorded, Recorder())[0]) / MS / step
    least = min(fixed, default=step)
    if least > (1 - WORTH) * step:
        return Truth(name, step, None, (), busy)
    return Truth(name, step, least, case.faults[fixed.index(least)].rules, busy)


def clocks_of(truth: Truth) -> tuple[float, ...]:
    """How slow a clock makes steps take as long as each of DISTORTIONS, if the host bounds them."""
    case = case_of(truth.case)
    training = case.training(CHOSEN[truth.case])
    traced = (profiled(training, case.recorded, replace(SLOW, clock=clock)) for clock in CLOCKS)
    longer = [step_ns(one) / MS / truth.step for one in traced]
    return tuple(np.interp(DISTORTIONS, longer, CLOCKS).tolist())


def record(training: Training, measured: int, recorder: Recorder) -> dict[str, Recording]:
    """Each part of other steps, when the launch queue is as full as it gets."""
    recorders = {"before": None, "device": replace(recorder, ops=False), "ops": recorder, "after": None}
    made = dict[str, Recording]()
    for seed, (part, one) in enumerate(recorders.items(), start=1):
        steps = TIMED if one is None else measured
        (made[part],) = profiled(training, steps, one, profiled(training, steps, one, seed=seed), seed)
    return made


def leave(made: Mapping[str, Recording], training: Training, recorder: Recorder, folder: Path, in_parts: bool) -> None:
    """What `diagnose profile` leaves; where nothing is `in_parts`, as it was before there were any."""
    kineto.write(made["ops"], training.gpu, folder / "rank0.trace.json")
    known: dict[str, Any] = {"unprofiled": timed(made["before"]), "timing": timed(made["ops"])}
    if in_parts:
        kineto.write(made["device"], training.gpu, folder / "rank0.device.json")
        known |= {"device": "rank0.device.json", "device_timing": timed(made["device"])}
        known |= {"unprofiled_after": timed(made["after"]), "event_cost": event_cost(recorder)}
    told = json.dumps(manifest(training, ["rank0.trace.json"], known))
    (folder / "manifest.json").write_text(told, encoding="utf-8")


def judged(truth: Truth, distortion: float, clock: float) -> tuple[Row, ...]:
    """Record, analyse, compare; for each of PARTS."""
    case, recorder = case_of(truth.case), replace(SLOW, clock=clock)
    training = case.training(CHOSEN[truth.case])
    made = record(training, case.recorded, recorder)
    ops, device = (round(step_ns([made[part]]) / step_ns([made["before"]]), 3) for part in ("ops", "device"))
    rows = []
    for in_parts in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            leave(made, training, recorder, Path(folder), in_parts)
            diagnosis = diagnosed(Path(folder))
        said = [finding for finding in diagnosis.findings if not finding.minor]
        place = place_of(truth.expected, [one.rule for one in said])
        saved = predicted(said[place - 1])[1] if place else None
        found = tuple(one.rule for one in said)
        rows.append(Row(truth, distortion, in_parts, ops, device, rounded(diagnosis.step_ns), saved, place, found))
    return tuple(rows)


def rows_of(names: Sequence[str]) -> Iterator[Row]:
    """Of these cases, at all distortions, in all parts, on all cores."""
    with ProcessPoolExecutor(os.cpu_count(), initializer=gc.disable) as pool:
        truths = list(pool.map(truth_of, CHOSEN))
        by_host = [one for one in truths if not one.by_device]
        clocks = dict(zip(by_host, pool.map(clocks_of, by_host), strict=True))
        usual = tuple(median(some) for some in zip(*clocks.values(), strict=True))
        asked = [
            (truth, *pair)
            for truth in truths
            if truth.case in names
            for pair in zip(DISTORTIONS, clocks.get(truth, usual), strict=True)
        ]
        yield from chain.from_iterable(pool.map(judged, *zip(*asked, strict=True)))


def published() -> tuple[Row, ...]:
    """What stands in benchmarks/simulated_recorded.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[Row, ...])


def by_distortion(rows: Sequence[Row]) -> str:
    """A line for each distortion and for what was recorded."""
    lines = []
    for distortion, in_parts in product(DISTORTIONS, PARTS):
        some = [row for row in rows if row.distortion == distortion and row.in_parts == in_parts]
        faulty = [row for row in some if row.truth.fixed is not None]
        named = [f"{sum((row.place or 99) <= most for row in faulty)} of {len(faulty)}" for most in (1, 3)]
        errors = [_off(row.gain for row in faulty), _off(row.left for row in faulty)]
        on_device = [row.is_falsely_launch_bound for row in some if row.truth.by_device]
        blamed = f"{sum(on_device)} of {len(on_device)}"
        lines.append([f"{distortion:.1f}", "in parts" if in_parts else "ops alone", *named, *errors, blamed])
    head = ["named first", "in three", "error of the speed-up, median", "error of the step that is left"]
    return table(["distortion", "recorded", *head, "GPU-bound, said to be launch-bound"], lines, texts=2)


def _off(ratios: Iterable[float | None]) -> str:
    known = [abs(one - 1) for one in ratios if one is not None]
    return f"{median(known):.1%}" if known else "-"


def longer(rows: Sequence[Row]) -> str:
    """Recorded steps over those without the profiler, by part and by what bounds them: median, least and most."""
    lines = []
    for distortion in DISTORTIONS:
        some = [row for row in rows if row.distortion == distortion and row.in_parts]
        sides = [[row for row in some if row.truth.by_device is side] for side in (False, True)]
        spreads = [_spread([getattr(row, part) for row in side]) for side in sides for part in ("ops", "device")]
        lines.append([f"{distortion:.1f}", *spreads])
    head = ["host-bound, with ops", "without", "GPU-bound, with ops", "without"]
    return table(["distortion", *head], lines)


def _spread(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"


def main() -> None:
    """Print a line for each row and the tables; keep the rows if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into benchmarks/simulated_recorded.json")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("all cases are published, or none")
    rows = list[Row]()
    for row in rows_of([name for name in CHOSEN if given.only in name]):
        rows.append(row)
        print(_said(row), flush=True)
    print(by_distortion(rows), longer(rows), sep="\n\n")
    if given.write:
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


def _said(row: Row) -> str:
    truth, parts = row.truth, "parts" if row.in_parts else "ops"
    ratios = " ".join("-" if one is None else f"{one:.2f}" for one in (row.gain, row.left))
    true = f"{truth.step:.2f} -> {truth.fixed or truth.step:.2f} ms, busy {truth.busy:.0%}"
    return (
        f"{truth.case} at {row.distortion} by {parts} ({row.ops:.2f}, {row.device:.2f}): {true}; "
        f"said over true {ratios}; place {row.place}: {', '.join(row.found)}"
    )


if __name__ == "__main__":
    main()
