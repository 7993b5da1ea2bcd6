"""Delay, queue depth and tiny kernels of launches."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.core.launches import launch_table, launches
from tests.drawing import Drawing


def test_depth_counts_what_was_launched_on_the_stream_and_has_not_finished() -> None:
    draw = Drawing()
    draw.launch("a", (0, 2), (10, 30))
    draw.launch("b", (4, 6), (30, 50))
    draw.launch("other stream", (7, 8), (9, 60), stream=8)
    draw.launch("c", (35, 37), (50, 53))
    draw.launch("d", (70, 72), (75, 76))
    table = launch_table(draw.facts())
    assert table.depth.tolist() == [0, 1, 0, 1, 0]
    assert table.delay_ns.tolist() == [10_000, 26_000, 2_000, 15_000, 5_000]


def test_depth_is_right_where_two_threads_launch_and_work_ends_in_another_order() -> None:
    draw = Drawing()
    draw.launch("first", (0, 1), (50, 60))
    draw.launch("by another thread", (2, 3), (10, 25), thread=9)
    draw.launch("third", (25, 26), (61, 62))  # The second has finished, the first has not.
    draw.launch("last", (61, 63), (70, 71), thread=9)  # Of three the third has not.
    table = launch_table(draw.facts())
    assert table.depth.tolist() == [0, 1, 1, 1]


def test_the_summary_of_the_used_steps() -> None:
    draw = Drawing().step(0, 0, 10).launch("first", (1, 2), (5, 20)).step(1, 10, 90).step(2, 90, 200)
    draw.launch("a", (11, 13), (20, 40)).launch("b", (14, 18), (40, 43)).launch("c", (100, 103), (110, 150))
    found = launches(draw.facts())
    assert found.per_step == 2  # 3 launches in 2 steps, rounded half up
    assert found.call_ns == 4_500
    assert (found.delay_median_ns, found.depth_max, found.depth_median) == (10_000, 2, 1)
    assert found.empty_queue_share == pytest.approx(1 / 3)
    assert (found.tiny_kernels, found.tiny_kernel_ns) == (1, 1_500)


def test_a_graph_launch_is_one_entry_in_the_queue() -> None:
    draw = Drawing().launch("k1", (0, 5), (10, 20), api="cudaGraphLaunch")
    correlation = draw.events[-1]["args"]["correlation"]
    draw.work("k2", (20, 40), correlation=correlation)
    draw.launch("after", (30, 31), (40, 50))
    table = launch_table(draw.facts())
    assert table.depth.tolist() == [0, 0, 1]


def test_without_launches_the_fact_is_missing() -> None:
    with pytest.raises(Missing, match="launches of device work"):
        launches(Drawing().work("k", (0, 5)).facts())
