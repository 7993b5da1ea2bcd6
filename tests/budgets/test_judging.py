"""Limits of a training, in three states, with intervals worked out by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from diagnose.budgets.judging import interval, judge
from diagnose.contracts.budget import Judged, Kept, Limits, What
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.pipeline import present
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Manifest, RankManifest, Timed
from tests.diagnoses import of_ranks

MS = 1_000_000


def run(*wall_ms: float, device_ms: tuple[float, ...] | None = None, cycle: int = 1) -> Manifest:
    """A run of one rank whose steps took so long without the profiler."""
    wall, device = (tuple(round(ms * MS) for ms in some) for some in (wall_ms, device_ms or ()))
    timed = Timed(first_step=10, wall_ns=wall, device_ns=device if device_ms else None)
    return Manifest(ranks=(RankManifest(rank=0, unprofiled=timed if wall_ms else None, cycle=cycle),))


def step(limit_ms: float, manifest: Manifest | None, diagnosis: Diagnosis | None = None) -> Judged:
    (only,) = judge(Limits(step_ns=round(limit_ms * MS)), manifest, diagnosis)
    assert only.what is What.STEP
    return only


def idle(limit: float, diagnosis: Diagnosis | None) -> Judged:
    (only,) = judge(Limits(idle_share=limit), None, diagnosis)
    assert only.what is What.IDLE
    return only


@pytest.fixture
def recorded() -> Diagnosis:
    """Steps of 100 ms in which the GPU works for 60."""
    synthetic = "4 steps of 100\ncpu  aten::mm 0-1 | zero_grad 99.2-99.3\ngpu  sgemm 40-100 @0.5"
    return of_ranks(present(facts_of(synthetic), []))


def without_profiler(diagnosis: Diagnosis, step_ms: int | None) -> Diagnosis:
    assert diagnosis.steps is not None
    step_ns = None if step_ms is None else step_ms * MS
    return replace(diagnosis, steps=replace(diagnosis.steps, unprofiled_step_time_ns=step_ns))


def test_the_interval_of_a_mean() -> None:
    """10, 12, 14: mean 12, deviation 2; t of 2 degrees of freedom at 97.5 % is 4.3027: 12 -+ 4.3027 * 2 / sqrt(3)."""
    assert interval((10, 12, 14)) == pytest.approx((7.0317, 16.9683), abs=1e-3)
    assert interval((5, 5, 5)) == (5, 5)
    assert interval((5, 5)) is None


def test_a_step_is_over_only_if_the_whole_interval_is() -> None:
    manifest = run(10, 12, 14)
    assert step(7, manifest).kept is Kept.OVER
    assert step(7.1, manifest).kept is Kept.CANNOT_TELL
    assert step(12, manifest).kept is Kept.CANNOT_TELL
    assert step(16.9, manifest).kept is Kept.CANNOT_TELL
    assert step(17, manifest).kept is Kept.WITHIN
    assert step(17, manifest).how == "3 steps without the profiler"


def test_a_gpu_is_timed_by_its_own_clock() -> None:
    assert step(6, run(1, 1, 1, device_ms=(5, 5, 5))).kept is Kept.WITHIN
    assert step(4, run(1, 1, 1, device_ms=(5, 5, 5))).kept is Kept.OVER


def test_steps_of_whole_cycles_count() -> None:
    """One step of three is long: the first two steps are no whole cycle, and are left out."""
    judged = step(20, run(1, 1, 10, 1, 1, 10, 1, 1, cycle=3))
    assert judged.how == "6 steps without the profiler"


def test_recorded_steps_only_bound_it_from_above(recorded: Diagnosis) -> None:
    """The profiler slows steps: those of 100 ms take at most as long without it."""
    assert step(100, run(), recorded).kept is Kept.WITHIN
    judged = step(99, run(), recorded)
    assert (judged.kept, judged.low, judged.high) == (Kept.CANNOT_TELL, None, 100 * MS)


@pytest.mark.parametrize("manifest", [None, run(), run(5)], ids=["none", "not timed", "one step"])
def test_a_step_that_nobody_timed_cannot_be_told(manifest: Manifest | None) -> None:
    judged = step(1, manifest)
    assert (judged.kept, judged.low, judged.high) == (Kept.CANNOT_TELL, None, None)


def test_what_recording_adds_may_all_be_idle(recorded: Diagnosis) -> None:
    """Of 100 ms the GPU is idle for 40; of the 80 ms without the profiler it is idle for 20 at least."""
    known = without_profiler(recorded, 80)
    assert idle(0.24, known).kept is Kept.OVER
    assert idle(0.3, known).kept is Kept.CANNOT_TELL
    assert idle(0.4, known).kept is Kept.WITHIN
    assert (idle(0.3, known).low, idle(0.3, known).high) == (0.25, 0.4)


def test_without_a_time_of_plain_steps_idle_time_has_no_lower_bound(recorded: Diagnosis) -> None:
    unknown = without_profiler(recorded, None)
    assert (idle(0.1, unknown).kept, idle(0.1, unknown).low) == (Kept.CANNOT_TELL, None)
    assert idle(0.5, unknown).kept is Kept.WITHIN


def test_without_a_gpu_idle_time_cannot_be_told() -> None:
    on_cpu = of_ranks(present(facts_of("4 steps of 100\ncpu aten::mm 0-90"), []))
    for diagnosis in (on_cpu, None):
        assert (idle(1.0, diagnosis).kept, idle(1.0, diagnosis).high) == (Kept.CANNOT_TELL, None)
