"""When a log asks for a recording, from logs that are written down here."""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from diagnose.trace.run_log import Column, Gauge, OutlierStep, RunLog, Window
from diagnose.watched.triggers import TriggerKind, triggered

S, MS = 1_000_000_000, 1_000_000


def log(step_ms: Callable[[int], float], seconds: int = 60, share: Callable[[int], float] = lambda at: 0.0) -> RunLog:
    """A window a second, whose steps take so long, and so large a share of it to wait for data."""
    windows = list[Window]()
    for at in range(seconds):
        steps = int(1000 / step_ms(at))
        spent, waited = int(steps * step_ms(at) * MS), int(steps * step_ms(at) * share(at) * MS)
        columns = {"step": Column(steps, spent, 0, 0), "loader": Column(steps, waited, 0, 0)}
        windows.append(Window(1 + 100 * at, steps, (at + 2) * S, (at + 3) * S, columns, 0, 0, (), (), 0, {}))
    return RunLog(0, 1, 0, "optimizer", None, windows[-1].ended_ns, {"step": 2 * S}, tuple(windows), {}, (), 0)


def kind(found: RunLog, *before: TriggerKind) -> TriggerKind | None:
    one = triggered(found, before)
    return None if one is None else one.kind


def test_steps_that_get_slower() -> None:
    """From second 40 on they take 12 ms. The last 15 s are of 50 s partly fast, and of 60 s all slow."""
    slower = log(lambda at: 12 if at >= 40 else 10)
    found = triggered(slower, ())
    assert (found.kind, found.why) == (
        TriggerKind.SLOWER,
        "step time rose 20 % since the start, from 10.0 ms to 12.0 ms",
    )
    assert kind(slower, TriggerKind.SLOWER) is None
    assert kind(log(lambda at: 12 if at >= 40 else 10, seconds=50)) is None
    assert kind(log(lambda at: 10.9 if at >= 40 else 10)) is None  # 9 %.


def test_waiting_that_begins() -> None:
    assert kind(log(lambda at: 10, share=lambda at: 0.3 if at >= 40 else 0.05)) is TriggerKind.WAITING
    assert kind(log(lambda at: 10, share=lambda at: 0.3)) is None  # It was there from the beginning.
    assert kind(log(lambda at: 10, share=lambda at: 0.15 if at >= 40 else 0.0)) is None


@pytest.mark.parametrize("noise", [0.03, 0.3])
def test_noise_asks_for_nothing(noise: float) -> None:
    """Of 300 runs of a minute, looked at each five seconds."""
    made = random.Random(0)
    asked = 0
    for _ in range(300):
        times = [10 * max(1 + made.gauss(0, noise), 0.3) for _ in range(60)]
        waits = [abs(made.gauss(0.1, 0.1 * noise)) for _ in range(60)]
        some = (log(times.__getitem__, seconds, waits.__getitem__) for seconds in range(5, 61, 5))
        asked += any(kind(one) is not None for one in some)
    assert asked <= 3


def with_outliers(numbers: list[int], excess_ms: int = 50) -> RunLog:
    steady = log(lambda at: 10)
    last = replace(
        steady.windows[-1],
        outliers=len(numbers),
        excess_ns=len(numbers) * excess_ms * MS,
        longest=tuple(OutlierStep(number, (10 + excess_ms) * MS, 0) for number in numbers),
    )
    return replace(steady, windows=(*steady.windows[:-1], last))


def test_outliers_at_a_period() -> None:
    found = triggered(with_outliers([5900, 5920, 5940]), ())
    assert (found.kind, found.period_steps, found.outlier) == (TriggerKind.OUTLIERS, 20, 5940)
    assert found.why == "one step in 20 takes 50.0 ms longer than the others"
    assert kind(with_outliers([5900, 5920, 5950])) is None
    assert kind(with_outliers([5700, 5800, 5900])) is None  # Too far apart to be recorded whole.
    assert kind(with_outliers([5900, 5920])) is None
    steady = with_outliers([5900, 5920, 5940])
    *others, last = steady.windows
    noisy = replace(last, longest=(*last.longest, OutlierStep(5931, 29 * MS, 0)))
    assert kind(replace(steady, windows=(*others, noisy))) is TriggerKind.OUTLIERS


def test_memory_that_grows() -> None:
    def grown(each: int) -> RunLog:
        steady = log(lambda at: 10)
        sizes = [1_000_000_000 + at * each for at in range(60)]
        gauges = [{"resident_bytes": Gauge(1, size, size, size, size)} for size in sizes]
        pairs = zip(steady.windows, gauges, strict=True)
        return replace(steady, windows=tuple(replace(one, gauges=gauge) for one, gauge in pairs))

    # The first part ends with the window of second 29 or so, so 30 s of growth are seen.
    assert kind(grown(12_000_000)) is TriggerKind.MEMORY
    assert kind(grown(5_000_000)) is None
