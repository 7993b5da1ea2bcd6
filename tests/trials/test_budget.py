"""What is said of losses and heat, and how the budget is shared: what one trial leaves, another one may use. Runs are
made up, and take a second each."""

import math
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diagnose.contracts.trials import Both, GpuState, Range
from diagnose.trace.manifest import DeviceState
from diagnose.trials import arms, course, protocol
from diagnose.trials.arms import Arm, Size, compared
from diagnose.trials.course import best, report
from diagnose.trials.protocol import Bench
from diagnose.trials.selection import Candidate
from tests.reports.test_trials import WORKERS as WORKERS_TRIED
from tests.trials.test_protocol import candidate

FUSED, WORKERS = candidate("patch:torch.optim(fused=True)"), candidate("patch:DataLoader(num_workers=4)")


class Timed(Bench):
    """Of which a run takes a second."""

    @property
    def left_s(self) -> float:
        return self.budget_s - self._count


def noise() -> Iterator[float]:
    return cycle((1.0, 1.04, 0.97, 1.05, 0.95, 1.02, 0.99))


def test_a_trial_goes_on_with_what_others_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 s the first run takes one and is half of a pair. One trial ends after two pairs, the other after three."""
    differ = noise()
    ways = {FUSED.trial: lambda: arm(10e6 * next(differ)), WORKERS.trial: lambda: arm(5e6)}
    monkeypatch.setattr(arms, "run_arm", lambda *given: ways[given[3][0]]() if given[3] else arm(10e6))
    made = Timed(["train"], Path(), Size(10, 30, 0.0, 1.0), 2, 12.0, lambda standing: None)
    made.begin()
    first = made.measure([FUSED], None, rest=2)
    assert (first.verdict, first.why, made.spent) == (
        "inconclusive",
        "The budget ran out after 2 pairs. Raise --budget.",
        {0},
    )
    second = made.measure([WORKERS], None)
    assert (second.verdict, second.pairs, made.spent) == ("keep", 3, {0})
    more = made.go_on(0)
    assert (more.pairs, more.why) == (3, "The budget ran out after 3 pairs. Raise --budget.")
    assert made.trials == [more, second]
    assert len(made.without) == 3 + 3


def test_a_script_that_resumes_is_said_to() -> None:
    """Its runs have other losses, and read what one before has written."""
    made = Timed(["train"], Path(), Size(10, 30, 0.0, 1.0), 2, 12.0, lambda standing: None)
    made.without = [replace(arm(10e6), losses=(first, 0.5), reread=("saved/ckpt.pt",)) for first in (2.0, 1.0)]
    said = "The script reads saved/ckpt.pt from an earlier run. If it resumes from there, runs train different steps."
    assert report(made, (), True).notes[0].startswith(f"Losses differ between identical runs of the script. {said}")


def test_runs_that_other_processes_held_back_are_told_as_if_they_had_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 5 ms with the fix waits for a CPU as long in the second pair, one of 10 ms without it in the third."""
    second, third = [replace(arm(10e6), waited=0.5), arm(10e6)], [replace(arm(20e6), waited=0.5), arm(5e6)]
    given = [arm(10e6), arm(5e6), *second, *third]
    monkeypatch.setattr(arms, "run_arm", lambda *args: given.pop(0))
    monkeypatch.setattr(random, "random", lambda: 0.9)  # The first pair begins without the fix, the second with it.
    made = Timed(["train"], Path(), Size(10, 30, 0.0, 1.0), 3, 6.0, lambda standing: None)
    found = made.measure([WORKERS], None)
    assert found.measured.likely == pytest.approx(2.0)


MALLOC = candidate("env:MALLOC_TRIM_THRESHOLD_=2147483647")


@pytest.mark.parametrize(
    ("budget_s", "kept", "again"),
    [(8.0, [], [MALLOC]), (7.0, [], []), (8.0, [MALLOC], [])],
    ids=["", "no time", "paid"],
)
def test_what_varies_by_process_is_tried_in_runs_where_one_process_shows_no_gain(
    budget_s: float, kept: list[Candidate], again: list[Candidate]
) -> None:
    """Two pairs of a second each, and as much to spare. Of the fused optimizer one process tells enough."""
    made = Timed(["train"], Path(), Size(10, 30, 0.0, 1.0), 2, budget_s, lambda standing: None)
    made.base = kept
    fused = replace(FUSED, number=2)
    assert made.in_runs_again([MALLOC, fused]) == again


@pytest.mark.parametrize(
    ("advised", "least_ns", "kept", "why"),
    [
        (2, 4e6, 8, "DataLoader(num_workers=4) was slower."),
        (2, 16e6, 2, "DataLoader(num_workers=4) was no faster."),
        (4, 90e6, None, "DataLoader(num_workers=2) was no faster."),
    ],
)
def test_workers_are_doubled_while_that_pays_and_halved_where_they_do_not(
    monkeypatch: pytest.MonkeyPatch, advised: int, least_ns: float, kept: int | None, why: str
) -> None:
    """Batches take 32 ms of waiting, and two cores allow eight workers. In the last case workers only cost."""
    times_ns = {f"patch:DataLoader(num_workers={count})": max(32e6 / count, least_ns) for count in (1, 2, 4, 8)}
    monkeypatch.setattr(arms, "run_arm", lambda *given: arm(times_ns[given[3][0]] if given[3] else 34e6))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    made = Timed(["train"], Path(), Size(10, 30, 0.0, 1.0), 2, 300.0, lambda standing: None)
    one = candidate(f"patch:DataLoader(num_workers={advised})")
    course.run(made, [one], lambda kept: None, lambda trial: None, together=False)
    (found,) = report(made, (), complete=True).trials
    assert found.why == why
    assert [one.trial for one in course.kept_of(made, [one])] == [f"patch:DataLoader(num_workers={kept})"] * bool(kept)


@pytest.mark.parametrize("high", [0.9, 1.2])
def test_separate_runs_overrule_one_run_only_where_intervals_do_not_meet(high: float) -> None:
    made = Timed(["train"], Path(), Size(10, 30, 0.0, 1.0), 2, 300.0, lambda standing: None)
    made.in_blocks = [msgspec.structs.replace(WORKERS_TRIED, measured=Range(1.1, 1.2, 1.3))]
    made.together = msgspec.structs.replace(WORKERS_TRIED, measured=Range(0.8, 0.85, high), verdict="slower")
    assert [one.verdict for one in best(made)] == ["slower" if high < 1.1 else "keep"]


class Told(Timed):
    """It keeps how long it may screen, and measures nothing."""

    limit_s = 0.0

    def screen(self, some: Sequence[Candidate], limit_s: float) -> list[Candidate]:
        self.limit_s = limit_s
        return []

    def in_runs_again(self, some: Sequence[Candidate]) -> list[Candidate]:
        return []

    def begin(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("some", "budget_s", "limit_s"),
    [
        ([FUSED], 300.0, 300 - 2 * 4 * 10),  # All but twice the two pairs of what is kept.
        ([FUSED, WORKERS], 300.0, 150),  # Those of the workers as well would leave 140 s.
        ([FUSED, WORKERS], 600.0, 600 - 2 * 8 * 10),
        ([FUSED], 60.0, 30),
    ],
)
def test_screening_may_take_what_runs_after_it_will_not_need(
    some: list[Candidate], budget_s: float, limit_s: float
) -> None:
    made = Told(["train"], Path(), Size(10, 30, 0.0, 10.0), 2, budget_s, lambda standing: None)
    with suppress(KeyboardInterrupt):
        course.run(made, some, lambda kept: None, lambda trial: None, together=True)
    assert made.limit_s == limit_s


LOSSES = st.lists(st.floats(width=32), min_size=1, max_size=30)


@given(LOSSES, st.integers(1, 30))
def test_equal_bits_are_the_same_as_far_as_both_go(losses: list[float], length: int) -> None:
    assert compared(losses, losses, losses[:length]) == "same"


@pytest.mark.parametrize(
    ("again", "changed", "said"),
    [
        ([2.0, 1.0], [2.0, 1.000001], "rounding"),
        ([2.0, 1.0], [2.0, 1.0001], "differ"),
        ([2.0, 1.0], [2.0, math.nan], "differ"),
        ([2.0, 1.0], [2.0, math.inf], "differ"),
        ([2.0, 1.000001], [2.0, 1.0], "rounding"),
        ([2.0, 1.000001], [2.0, 1.1], "differ"),
        ([2.1, 1.0], [2.0, 1.0], "not_deterministic"),
        ([2.1, 1.0], [5.0, 1.0], "not_deterministic"),
        ([2.0, 1.0], [], None),
        ([], [2.0, 1.0], None),
    ],
)
def test_differences_are_judged_by_those_of_equal_arms(
    again: list[float], changed: list[float], said: str | None
) -> None:
    assert compared([2.0, 1.0], again, changed) == said


def test_rounding_may_grow_after_the_first_steps() -> None:
    start = [1.0] * 10
    assert compared([*start, 1.0], [*start, 1.0], [*start, 1.1]) == "rounding"


def test_rounding_of_a_loss_that_falls_to_nothing_is_of_what_it_fell_from() -> None:
    """The last losses differ by a thousandth of themselves, and by 5e-6 of the first."""
    falling = [2.0, 1e-1, 1e-2]
    assert compared(falling, falling, [2.0, 1e-1, 1.001e-2]) == "rounding"
    assert compared(falling, falling, [2.0, 1e-1, 1.1e-2]) == "differ"


@given(st.floats(1e-300, 1e300), st.floats(1e-9, 1e-1).filter(lambda share: abs(share - 2e-5) > 1e-9))
def test_the_unit_of_the_loss_does_not_matter(unit: float, change: float) -> None:
    before, after = [unit, unit / 2], [unit, unit / 2 * (1 + change)]
    assert compared(before, before, after) == compared([1.0, 0.5], [1.0, 0.5], [1.0, 0.5 * (1 + change)])


def test_zero_equals_no_other_number() -> None:
    assert compared([0.0], [0.0], [1e-30]) == "differ"


def arm(step_ns: float, *held_back_by: str, clock_mhz: int = 1980) -> Arm:
    state = DeviceState(index=0, sm_clock_mhz=clock_mhz, power_w=400.0)
    return Arm(step_ns, 30, 10, 2.0, None, (), ("x",), 1.0, state, held_back_by)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Arm]:
    given = list[Arm]()

    def run_arm(
        command: Sequence[str], folder: Path, size: Size, fixes: Sequence[str], written: Sequence[str] = ()
    ) -> Arm:
        return given.pop(0)

    monkeypatch.setattr(arms, "run_arm", run_arm)
    monkeypatch.setattr(protocol, "COOLING_S", 0.0)
    return given


def bench() -> Bench:
    return Bench(["train"], Path(), Size(10, 30, 0.0, 1.0), 2, 300.0, lambda standing: None)


def test_a_run_in_which_it_is_hot_is_repeated(runs: list[Arm]) -> None:
    runs += [arm(10e6), arm(14e6, "HwThermalSlowdown"), arm(10e6)]
    made = bench()
    made.begin()
    made.begin()
    assert [one.step_ns for one in made.without] == [10e6, 10e6]
    assert report(made, (), complete=True).notes[0] == ("Runs repeated because the GPU was throttled by heat: 1.")


def test_heat_that_stays_belongs_to_the_machine(runs: list[Arm]) -> None:
    runs += [arm(14e6, "SwThermalSlowdown") for _ in range(5)]
    made = bench()
    made.begin()
    made.begin()
    assert (len(made.without), made.repeated, made.held_back, runs) == (2, 3, 2, [])
    assert "Runs counted although the GPU was throttled by heat: 2." in " ".join(report(made, (), complete=True).notes)


def test_clocks_stand_with_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {True: arm(5e6, clock_mhz=1930), False: arm(10e6, clock_mhz=1900)}
    monkeypatch.setattr(arms, "run_arm", lambda command, folder, size, fixes, written: ways[bool(fixes)])
    found = bench().measure([candidate("patch:torch.optim(fused=True)")], None)
    assert found.gpu == GpuState(sm_clock_mhz=Both(1900, 1930), temperature_c=None, power_w=Both(400, 400))


def test_a_power_limit_is_no_heat() -> None:
    """A training may be at it all the time."""
    assert "SwPowerCap" not in arms.HEAT
