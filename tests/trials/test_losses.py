"""What is said of losses."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.contracts.trials import Both, GpuState
from diagnose.trace.manifest import DeviceState
from diagnose.trials import arms, protocol
from diagnose.trials.arms import Arm, Size, compared
from diagnose.trials.protocol import Bench
from diagnose.trials.results import report
from tests.trials.test_protocol import candidate

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
