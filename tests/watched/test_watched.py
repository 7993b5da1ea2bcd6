"""What is said of a whole run, from logs that are written down here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.contracts.watched_run import (
    GrowingMemory,
    GrowingSteps,
    NotFound,
    PeriodicOutliers,
    RunPartKind,
    SlowFirstEpoch,
    TrendKind,
)
from diagnose.reports import terminal, watched_run
from diagnose.trace.run_log import Column, EpochTime, Gauge, RunLog, Window
from diagnose.watched.assembly import rank_run
from diagnose.watched.assembly import watched_run as of_logs
from diagnose.watched.parts import parts
from diagnose.watched.sketch import quantile_ns
from diagnose.watched.trends import CannotTell, growing_memory, growing_steps, periodic_outliers, slow_first_epoch

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


def test_parts_add_up_to_the_run() -> None:
    (window,) = windows([10 * MS], steps=100)  # 1 s of steps.
    window = replace(
        with_columns(
            window,
            loader=column(100, 300 * MS),
            collection=column(2, 50 * MS),
            compilation=column(1, 150 * MS),
            evaluation=column(3, 600 * MS),
            save=column(2, 200 * MS),
            outside=column(1, 100 * MS),
        ),
        ended_ns=2 * S + 900 * MS,
    )
    last = {"step": 10 * MS, "evaluation": 40 * MS, "save": 20 * MS}
    found = parts(log((window,), last=last, length_ns=3 * S))
    assert {one.kind: (one.ns // MS, one.count) for one in found} == {
        RunPartKind.START: (1150, None),
        RunPartKind.EVALUATION: (640, 4),
        RunPartKind.TRAINING: (500, 100),
        RunPartKind.LOADER: (300, None),
        RunPartKind.SAVE: (220, 3),
        RunPartKind.OUTSIDE: (110, None),
        RunPartKind.COLLECTION: (50, None),
        RunPartKind.LOST: (30, None),
    }
    assert sum(one.ns for one in found) == 3 * S
    assert [one.ns for one in found] == sorted((one.ns for one in found), reverse=True)


def test_forward_passes_without_gradients_in_most_steps_are_part_of_them() -> None:
    (window,) = windows([10 * MS], steps=100)
    window = replace(with_columns(window, evaluation=column(100, 500 * MS)), ended_ns=2 * S + 500 * MS)
    found = {one.kind: one.ns for one in parts(log((window,)))}
    assert found == {RunPartKind.TRAINING: 1500 * MS, RunPartKind.START: S}


def test_a_quantile_is_in_its_bucket() -> None:
    # Buckets of 2^(48/16) = 8 to 8.35 ns and of 2^(64/16) = 16 to 16.7 ns.
    columns = [Column(3, 24, 8, 8, ((48, 3),)), Column(2, 32, 16, 16, ((64, 2),))]
    assert quantile_ns(columns, 0.5) == 8
    assert quantile_ns(columns, 0.99) == 16
    assert quantile_ns([Column(2, 5, 2, 3)], 0.5) is None


def test_steps_that_grow_are_told_with_what_that_costs() -> None:
    # 12 windows of 10 steps from 100 to 210 ms: the median of the first three is 110, of the last three 200.
    found = growing_steps(log(windows([(100 + 10 * k) * MS for k in range(12)])))
    assert isinstance(found, GrowingSteps)
    assert (found.first_ns, found.last_ns) == (110 * MS, 200 * MS)
    assert found.per_1000_steps_ns == pytest.approx(1000 * MS, rel=0.05)
    # The run took 10 steps of each of 100, 110, ..., 210 ms: 18.6 s, where steps of 110 ms would take 13.2.
    assert found.cost_ns == 10 * sum(10 * k - 10 for k in range(12)) * MS
    assert found.chance < 1e-7


@pytest.mark.parametrize(
    "steps_ms",
    [
        [100] * 12,
        [100, 104, 98, 101, 99, 103, 97, 102, 100, 98, 104, 101],
        [100] * 6 + [150] * 6,
        [150, 140, 130, 120, 110, 100] * 2,
        [100, 101, 102, 103, 104, 105, 106, 107, 108, 108.5, 108.7, 108.9],
    ],
    ids=["alike", "noise", "slower once", "saw", "too little"],
)
def test_steps_that_do_not_grow_are_not_said_to(steps_ms: list[float]) -> None:
    assert growing_steps(log(windows([int(one * MS) for one in steps_ms]))) is None


def test_outliers_are_not_taken_for_growth() -> None:
    some = windows([100 * MS] * 12)
    some = tuple(
        replace(with_columns(one, step=column(10, S + k * S)), outliers=1, excess_ns=k * S, ended_ns=one.ended_ns)
        for k, one in enumerate(some)
    )
    assert growing_steps(log(some)) is None


def test_outliers_at_a_period() -> None:
    some = windows([100 * MS] * 2, steps=250)
    gaps = (((50, 5), (51, 2)), ((49, 1), (7, 1)))
    some = tuple(replace(one, outliers=5, excess_ns=3 * S, gaps=pairs) for one, pairs in zip(some, gaps, strict=True))
    found = periodic_outliers(log(some))
    assert found == PeriodicOutliers(50, 10, 8 / 9, 6 * S)
    assert watched_run.trends(rank_run(log(some)))[0] == (
        "Every 50 steps one is an outlier, over three times the usual step: 10 outlier steps, 89 % at that period,"
        " cost 6.00 s (11.8 % of the run)."
    )
    rare = tuple(replace(one, gaps=((3, 1), (17, 1), (40, 1), (90, 1))) for one in some)
    assert periodic_outliers(log(rare)) is None
    every_other = tuple(replace(one, outliers=60, gaps=((2, 60),)) for one in some)  # 120 of 500 steps
    with pytest.raises(CannotTell, match="over a fifth of the steps are outliers"):
        periodic_outliers(log(every_other))


def test_a_first_epoch_that_waits_for_its_data() -> None:
    (one,) = windows([10 * MS], steps=90)
    epochs = (
        EpochTime(0, S, 30, 30 * 50 * MS, 30 * 42 * MS),
        *(EpochTime(k, S, 30, 30 * 10 * MS, 30 * MS) for k in (30, 60)),
    )
    some = replace(with_columns(one, step=column(90, 2100 * MS), loader=column(90, 1320 * MS)), epochs=epochs)
    some = replace(some, ended_ns=S + 2100 * MS)
    found = slow_first_epoch(log((some,)))
    assert found == SlowFirstEpoch(50 * MS, 10 * MS, 42 * MS, MS, 30 * 40 * MS)
    run = rank_run(log((some,)))
    assert watched_run.trends(run) == [
        "Steps of the first epoch take 50.0 ms, later ones 10.0 ms. That costs 1.20 s (38.7 % of the run)."
        " Most of that is waiting for data: a cold file cache or the like.",
        "Looked for, and not there: periodic outlier steps.",
        "Cannot tell a growing step time: the log has too few windows of a second and more, and it takes 6.",
        "Cannot tell growing memory: this system does not tell a process's memory.",
    ]
    assert "waiting for data 42.6 % (all of it in the first epoch)" in watched_run.headline(run)


def resident(some: tuple[Window, ...], sizes: list[float]) -> tuple[Window, ...]:
    return tuple(
        replace(one, gauges={"resident_bytes": Gauge(1, size, size, size, size)})
        for one, size in zip(some, sizes, strict=True)
    )


def test_memory_that_grows_to_the_end() -> None:
    some = windows([100 * MS] * 30)  # Of 31 s, of which windows that end after 10.33 s count: from 11 s on.
    found = growing_memory(log(resident(some, [1e9 + 10e6 * k for k in range(30)])))
    assert isinstance(found, GrowingMemory)
    assert found.last_bytes == 1_290_000_000
    assert found.per_1000_steps_bytes == pytest.approx(1e9, rel=0.1)
    full = [1e9 + 10e6 * min(k, 9) for k in range(30)]
    assert growing_memory(log(resident(some, full))) is None


def test_a_long_healthy_run_shows_no_trend_and_a_short_one_cannot_tell() -> None:
    one_epoch = "no second epoch of a DataLoader was seen"
    steady = resident(windows([100 * MS] * 30), [1e9] * 30)
    assert rank_run(log(steady)).trends == ()
    assert rank_run(log(steady)).not_found == (
        NotFound(TrendKind.GROWING_STEPS, ""),
        NotFound(TrendKind.GROWING_MEMORY, ""),
        NotFound(TrendKind.PERIODIC_OUTLIERS, ""),
        NotFound(TrendKind.SLOW_FIRST_EPOCH, one_epoch),
    )
    short = "the log has too few windows of a second and more, and it takes 6"
    whys = [one.why for one in rank_run(log(steady[:5])).not_found]
    assert whys == [short, short, "", one_epoch]


def test_the_sentence_adds_up_to_a_hundred_percent() -> None:
    (window,) = windows([10 * MS], steps=100)
    thirds = replace(with_columns(window, evaluation=column(1, S)), ended_ns=3 * S)
    run = rank_run(log((thirds,)))
    assert watched_run.headline(run) == (
        "Of 3.00 s: training steps 33.4 %, evaluation 33.3 %, start-up and compilation 33.3 %."
    )


@pytest.mark.parametrize(
    ("ns", "text"),
    [(59 * S, "59.0 s"), (723 * S, "12 min 3 s"), (11_520 * S, "3 h 12 min"), (3_599_900 * MS, "1 h 0 min")],
)
def test_long_times_are_told_as_people_do(ns: int, text: str) -> None:
    assert watched_run.long_duration(ns) == text


def test_a_run_that_was_killed_says_so() -> None:
    found = of_logs([log(windows([100 * MS] * 2), ended=None, damaged=2)])
    text = terminal.watched(found)
    assert "21 steps, found by optimizer steps; it was killed, or still runs." in text
    assert "The log is damaged in 2 places: what was there is left out." in text
