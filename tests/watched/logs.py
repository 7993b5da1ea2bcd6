"""Logs of runs that are written down: by hand, or by the recorder from intervals that are made up."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from diagnose.capture.agent.watch.log import framed
from diagnose.capture.agent.watch.step_times import Interval
from diagnose.capture.agent.watch.windows import COLUMNS, Windows
from diagnose.source.run_log import read
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


def interval(step: int, **more: int | bool) -> Interval:
    """Of a step in ns; `ended` is filled in by `recorded`."""
    known = dict.fromkeys(Interval._fields, 0) | {"step": step, "epoch": False} | more
    return Interval(**known)  # type: ignore[arg-type]


def recorded(
    folder: Path, intervals: Iterable[Interval], rank: int = 0, world_size: int = 1, began_unix_ns: int = 0
) -> RunLog:
    """The log as the recorder writes it of a run whose first interval starts up for a second."""
    now, made, records = S, Windows(0), list[list[object]]()
    first = interval(S)._replace(ended=now)
    made.started(first)
    for one in intervals:
        now += one.step + one.save + one.evaluation
        made.take([one._replace(ended=now)])
        if made.detailed:
            records.append(["steps", made.detailed])
            made.detailed = []
        if made.long_enough(now):
            records.append(made.record())
            made.next()
    row = [int(getattr(first, name, 0)) for name in COLUMNS]
    records.append(made.record(last=True))
    records.append(["end", "itself", now, [0] * len(COLUMNS), "optimizer", []])
    path = folder / f"rank{rank}.watch"
    begin = ["begin", 1, rank, world_size, 99, began_unix_ns, [*COLUMNS], row]
    path.write_bytes(b"".join(map(framed, [begin, *records])))
    return read(path)


def noise(seed: int, share: float) -> Iterator[float]:
    """Factors of a mean of 1 that vary by so much (a gamma distribution)."""
    chance = random.Random(seed)
    while True:
        yield chance.gammavariate(1 / share**2, share**2)
