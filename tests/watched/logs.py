"""Logs of runs that are written down: by hand, or by the recorder from intervals that are made up."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from diagnose.capture.agent.watch.step_times import Interval
from diagnose.synthetic.run_notation import interval as interval
from diagnose.synthetic.run_notation import written
from diagnose.trace.run_log import Column, Gauge, RunLog, Window

S, MS = 1_000_000_000, 1_000_000


def column(count: int, sum_ns: int) -> Column:
    return Column(count, sum_ns, sum_ns // max(count, 1), sum_ns // max(count, 1))


def windows(steps_ns: list[int], steps: int = 10) -> tuple[Window, ...]:
    """One after the other, of so many steps each of which takes that long."""
    found, ended = list[Window](), S
    for at, step in enumerate(steps_ns):
        began, ended = ended, ended + steps * step
        columns = {"step": column(steps, steps * step)}
        found.append(Window(1 + at * steps, steps, began, ended, columns, 0, 0, (), (), 0, {}))
    return tuple(found)


def log(some: tuple[Window, ...], **more: object) -> RunLog:
    """A run that starts in a second and ends with its last window."""
    start = {"step": S, "save": 0, "evaluation": 0}
    whole = RunLog(0, 1, 0, "optimizer", "itself", some[-1].ended_ns, start, some, {}, (), 0)
    return replace(whole, **more)  # type: ignore[arg-type]


def with_columns(window: Window, **columns: Column) -> Window:
    return replace(window, columns={**window.columns, **columns})


def with_gauges(some: tuple[Window, ...], **values: list[float]) -> tuple[Window, ...]:
    return tuple(
        replace(
            one,
            gauges=one.gauges
            | {name: Gauge(1, all_[at], all_[at], all_[at], all_[at]) for name, all_ in values.items()},
        )
        for at, one in enumerate(some)
    )


def recorded(folder: Path, intervals: Iterable[Interval], rank: int = 0, *job: int) -> RunLog:
    """The log as the recorder writes it of a run whose first interval starts up for a second."""
    return written(folder, ((one, {}) for one in intervals), rank, *job)


def noise(seed: int, share: float) -> Iterator[float]:
    """Factors of a mean of 1 that vary by so much (a gamma distribution)."""
    chance = random.Random(seed)
    while True:
        yield chance.gammavariate(1 / share**2, share**2)
