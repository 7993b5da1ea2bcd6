"""A GPU that heat holds back: its runs are repeated, but not for ever. No GPU here gets hot, so runs are made up."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from diagnose.contracts.trials import Both, GpuState
from diagnose.trace.manifest import DeviceState
from diagnose.trials import arms, protocol
from diagnose.trials.arms import Arm, Size
from diagnose.trials.protocol import Bench, report
from tests.trials.test_protocol import candidate


def arm(step_ns: float, *held_back_by: str, clock_mhz: int = 1980) -> Arm:
    state = DeviceState(index=0, sm_clock_mhz=clock_mhz, power_w=400.0)
    return Arm(step_ns, 30, 10, 2.0, None, (), ("x",), 1.0, state, held_back_by)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Arm]:
    """What runs give, the next one first."""
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
    assert [one.step_ns for one in made.without] == [10e6, 10e6]
    assert report(made, (), complete=True).notes[0] == (
        "Runs that were repeated, as heat held the GPU back in them: 1."
    )


def test_heat_that_stays_belongs_to_the_machine(runs: list[Arm]) -> None:
    runs += [arm(14e6, "SwThermalSlowdown") for _ in range(5)]
    made = bench()
    made.begin()
    assert (len(made.without), made.repeated, made.held_back, runs) == (2, 3, 2, [])
    assert "Runs that count though heat held the GPU back in them: 2." in " ".join(
        report(made, (), complete=True).notes
    )


def test_clocks_stand_with_the_trial(runs: list[Arm]) -> None:
    runs += [arm(10e6), arm(10e6)]
    made = bench()
    made.begin()
    runs += [arm(10e6 + k % 2, clock_mhz=1900 + 10 * k) for k in range(4)]
    found = made.measure([candidate("patch:torch.optim(fused=True)")], None)
    assert found.gpu is not None
    assert {found.gpu.sm_clock_mhz.without, found.gpu.sm_clock_mhz.with_} == {1915.0}
    assert found.gpu == GpuState(sm_clock_mhz=Both(1915, 1915), temperature_c=None, power_w=Both(400, 400))


def test_a_power_limit_is_no_heat() -> None:
    """A training may be at it all the time."""
    assert "SwPowerCap" not in arms.HEAT
