"""Fetches of batches: how long, how often, at what pattern, and when workers are started again."""

import numpy as np
import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.core.steps import steps
from diagnose.facts.data.fetches import Fetches, fetches, input_wait
from diagnose.synthetic.reading import facts_of
from tests.drawing import Drawing

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
GET_ITERATOR = "torch/utils/data/dataloader.py(388): _get_iterator"
SECOND = 1e6


def fetch(draw: Drawing, start: float, end: float, name: str = WORKERS) -> Drawing:
    return draw.span("user_annotation", name, start, end)


def host_only(*durations_us: float) -> Drawing:
    """One fetch at the start of each step, on a run without a device. The first step is not used."""
    draw, at = Drawing(), 0.0
    for number, dur in enumerate((1.0, *durations_us)):
        draw.step(number, at, at + dur + 10)
        fetch(draw, at, at + dur).op("aten::mm", at + dur + 1, at + dur + 9)
        at += dur + 10
    return draw


def every(*durations_us: float) -> int | None:
    found = fetches(host_only(*durations_us).facts())
    return found.every


def test_fetches_with_the_idle_time_in_them() -> None:
    draw = Drawing().step(0, -100, 0).launch("first", (-50, -49), (-40, 0)).step(1, 0, 100).step(2, 100, 200)
    for at in (-100, 0, 100):
        fetch(draw, at, at + 40, SINGLE)
    draw.launch("gemm", (41, 42), (43, 110)).launch("gemm", (141, 142), (150, 200))
    found = fetches(draw.facts())
    assert found.dur_ns.tolist() == [40_000] * 3
    assert np.diff(found.start_ns).tolist() == [100_000] * 2
    assert found.in_steps.tolist() == [False, True, True]
    assert not found.first.any()
    # Before the used steps nothing is said; then idle from 0 to 43 and from 110 to 150.
    assert found.idle_ns.tolist() == [0, 40_000, 30_000]
    assert (found.in_process, found.ready_ns, found.every) == (True, 40_000, None)
    assert found.restart_ids.tolist() == []


def test_without_a_device_there_is_no_idle_time() -> None:
    found = fetches(host_only(5, 6).facts())
    assert (found.idle_ns, found.in_process, found.dur_ns.tolist()) == (None, False, [1_000, 5_000, 6_000])
    assert found.in_steps.tolist() == [False, True, True]


def test_names_that_do_not_say_where_batches_are_made() -> None:
    draw = fetch(Drawing().op("aten::mm", 0, 50), 1, 2, SINGLE)
    assert fetches(fetch(draw, 3, 4, WORKERS).facts()).in_process is None
    other = Drawing().op("aten::mm", 0, 50).span("user_annotation", "enumerate(DataLoader)#Mine.__next__", 1, 2)
    assert fetches(other.facts()).in_process is None


def test_no_fetch_on_a_training_thread_is_missing() -> None:
    with pytest.raises(Missing, match="DataLoader fetches"):
        fetches(Drawing().op("aten::mm", 0, 50).facts())
    with pytest.raises(Missing, match="DataLoader fetches"):
        fetches(Drawing().step(1, 0, 50).op("aten::mm", 0, 50).span("user_annotation", WORKERS, 1, 9, tid=77).facts())


def test_ready_is_what_the_quickest_tenth_takes() -> None:
    # With the fetch of 1 us in the unused step eleven durations; their p10 is the second least.
    assert fetches(host_only(2, 900, 900, 900, 900, 900, 900, 900, 900, 900).facts()).ready_ns == 2_000


def test_a_loader_inside_a_loader_is_one_fetch() -> None:
    draw = fetch(fetch(Drawing().op("aten::mm", 0, 50), 10, 40), 20, 30)
    assert fetches(draw.facts()).dur_ns.tolist() == [30_000]


def test_a_period_is_the_number_of_workers_that_cannot_keep_up() -> None:
    assert every(*[100, 1, 1] * 8) == 3
    assert every(*[90, 60, 30, 1, 95, 62, 33, 2, 99, 58, 29, 1]) == 4


def test_few_fetches_and_those_that_are_late_now_and_then_or_alike_have_no_period() -> None:
    assert every(*[100, 1, 1] * 3) is None
    assert every(*[2] * 30, 100, *[2] * 9, 90, 2) is None
    assert every(*[20, 24, 22, 21] * 5) is None


def test_the_first_fetch_of_an_iterator_is_told_apart() -> None:
    draw = host_only(*[2] * 12)
    base = draw.events[0]["ts"]
    draw.frame(GET_ITERATOR, base - 9, base - 5)
    third = next(e for e in draw.events if e["name"] == "ProfilerStep#2")["ts"]
    draw.span("user_annotation", "DataLoader.__iter__", third - 0.5, third - 0.25)
    found = fetches(draw.facts())
    assert np.flatnonzero(found.first).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("ops", "first"),
    [
        (("aten::random_", "aten::item"), [1, 2]),  # every new iterator draws a seed
        (("aten::randperm", "aten::item"), []),
        (("aten::random_", "aten::item", "aten::mm"), []),  # drawn for something else
        (("aten::item",), []),
    ],
)
def test_a_fetch_after_a_seed_is_drawn_is_the_first_of_an_iterator(ops: tuple[str, ...], first: list[int]) -> None:
    items = " | ".join(f"{name} {k}-{k + 1} not in 0" for k, name in enumerate(ops))
    found = fetches(facts_of(f"3 steps of 100\ncpu  {items} | load 10-50 | aten::mm 50-60\ngpu  sgemm 51-90 @50.5"))
    assert np.flatnonzero(found.first).tolist() == first
    assert found.first_share == (1.0 if first else 0.0)


def test_the_first_fetch_says_nothing_of_what_a_ready_one_takes() -> None:
    draw = host_only(5, 6).frame(GET_ITERATOR, -9, -5)
    assert fetches(draw.facts()).ready_ns == 5_100  # p10 of 5 and 6 us.


def restarts(draw: Drawing) -> tuple[Fetches, list[str]]:
    facts = draw.facts()
    found = fetches(facts)
    return found, [str(name) for name in facts.rank.spans["name"].iloc[found.restart_ids]]


@pytest.mark.parametrize(
    ("durations", "of_seconds"),
    [
        ([3000] * 4 + [0.6 * SECOND] + [3000] * 4 + [0.7 * SECOND] + [3000] * 4, [0.6, 0.7]),
        ([3000] * 4 + [0.4 * SECOND] + [3000] * 4, []),
        ([0.07 * SECOND] * 4 + [0.6 * SECOND] + [0.07 * SECOND] * 4, []),
        ([0.6 * SECOND] * 3, []),  # All are long.
        ([0.6 * SECOND], [0.6]),
        ([0.7 * SECOND, 0.4 * SECOND, 200, 100, 100] * 4, []),  # Starved workers.
    ],
)
def test_a_fetch_far_longer_than_the_others_waits_for_new_workers(
    durations: list[float], of_seconds: list[float]
) -> None:
    found, names = restarts(host_only(*durations))
    assert names == [WORKERS] * len(of_seconds)
    assert found.dur_ns[np.isin(found.ids, found.restart_ids)].tolist() == [1e9 * one for one in of_seconds]


def test_the_frame_that_makes_new_workers_is_a_restart_itself() -> None:
    draw = host_only(*[3000] * 4)
    draw.frame(GET_ITERATOR, 1, 900).frame("torch/utils/data/dataloader.py(701): _reset", 5000, 5001)
    assert restarts(draw)[1] == [GET_ITERATOR]
    named = host_only(*[3000] * 4).span("user_annotation", "_MultiProcessingDataLoaderIter.__init__", 1, 900)
    assert restarts(named)[1] == ["_MultiProcessingDataLoaderIter.__init__"]


def at_a_turn() -> Drawing:
    """The request of step 6 finds the epoch over and ends the workers; the one of step 7 waits for new ones."""
    draw = host_only(*[2] * 5, 80, 200, *[2] * 5)
    sixth, seventh = (next(e for e in draw.events if e["name"] == f"ProfilerStep#{k}")["ts"] for k in (6, 7))
    draw.span("user_annotation", "_MultiProcessingDataLoaderIter._shutdown_workers", sixth + 1, sixth + 79)
    return draw.span("user_annotation", "_MultiProcessingDataLoaderIter.__init__", seventh - 1, seventh - 0.5)


def at_turns_ns(draw: Drawing) -> int:
    """In all steps, to a nanosecond of each."""
    facts = draw.facts()
    wait, used = input_wait(facts), steps(facts)
    return (wait.waited_ns - fetches(facts).late_ns(wait, used)) * used.count


def test_the_request_that_ends_workers_is_told_apart() -> None:
    found, names = restarts(at_a_turn())
    assert np.flatnonzero(found.last).tolist() == [6]
    assert np.flatnonzero(found.first).tolist() == [7]
    assert found.restarts == 1
    assert names == [f"_MultiProcessingDataLoaderIter.{name}" for name in ("_shutdown_workers", "__init__")]
    assert found.ready_ns == 2_000
    assert (at_turns_ns(at_a_turn()), found.first_ns) == (pytest.approx(280_000, abs=12), 200_000)


def test_without_ranges_nothing_is_at_a_turn() -> None:
    draw = host_only(*[2] * 5, 80, 200, *[2] * 5)
    found = fetches(draw.facts())
    assert (at_turns_ns(draw), found.first_ns, found.restarts) == (0, None, 0)


def test_an_iterator_without_workers_starts_none() -> None:
    draw = fetch(fetch(Drawing().op("aten::mm", 0, 50), 10, 20, SINGLE), 30, 40, SINGLE).frame(GET_ITERATOR, 1, 9)
    assert restarts(draw)[1] == []
