"""Work that waits and graphs show to have run, and that was not recorded."""

from __future__ import annotations

from diagnose.facts.core.breakdown import breakdown
from diagnose.facts.core.unrecorded_work import unrecorded_work
from tests.drawing import Drawing


def found(draw: Drawing) -> list[tuple[float, float]]:
    """In us."""
    some = unrecorded_work(draw.facts())
    return [(start / 1e3, end / 1e3) for start, end in zip(some.starts.tolist(), some.ends.tolist(), strict=True)]


def test_a_wait_that_nothing_recorded_fills() -> None:
    """From 500 on, when the recorded kernel is done."""
    draw = Drawing().launch("k", (0, 20), (30, 500)).call("cudaStreamSynchronize", 100, 6000)
    assert found(draw) == [(500, 6000)]


def test_a_graph_without_kernels_may_have_begun_with_its_launch() -> None:
    draw = (
        Drawing().launch("k", (0, 5), (10, 20)).call("cudaGraphLaunch", 30, 40).call("cudaStreamSynchronize", 90, 6000)
    )
    assert found(draw) == [(30, 6000)]


def test_a_host_that_is_slow_to_wake_has_waited_for_what_was_recorded() -> None:
    draw = Drawing().launch("k", (10, 20), (30, 5000)).call("cudaStreamSynchronize", 100, 5900)
    assert found(draw) == []


def test_clocks_that_disagree_are_allowed_for() -> None:
    """By 2 ms: the kernel starts before its launch by as much."""
    draw = Drawing().launch("k", (2010, 2020), (10, 500)).call("cudaStreamSynchronize", 2100, 3400)
    assert found(draw) == []


def test_it_is_neither_busy_nor_idle() -> None:
    draw = Drawing()
    for step in range(3):
        at = step * 10_000
        draw.step(step, at, at + 10_000).launch("k", (at, at + 5), (at + 10, at + 1000))
        draw.call("cudaStreamSynchronize", at + 100, at + 8000)
    time = breakdown(draw.facts())
    assert (time.compute_ns, time.graph_not_recorded_ns, time.idle_ns) == (990_000, 7_000_000, 2_010_000)
