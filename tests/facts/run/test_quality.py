"""Warm-up among the used steps, what the profiler costs, how steady steps are."""

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.facts.run.pauses import time_by_step
from diagnose.facts.run.quality import Overhead, Sign, distortion, not_recorded, steadiness, warm_up
from diagnose.synthetic.reading import facts_of
from diagnose.trace import intervals
from diagnose.trace.manifest import Host, RankManifest
from diagnose.trace.model import Context
from tests.drawing import Drawing


def run(*lengths: int) -> Drawing:
    """Steps of these us on the device, each with one kernel; the first of them is not used."""
    draw, at = Drawing(), 0
    for number, length in enumerate(lengths):
        draw.step(number, at, at + length).launch("k", (at + 1, at + 5), (at + 10, at + length))
        at += length
    return draw


def test_slow_first_steps_with_a_sign_are_warm_up() -> None:
    draw = run(100, 300, 140, 100, 100, 100).call("cuModuleLoadData", 110, 120)
    for k in range(6):
        draw.call("cudaMalloc", 410 + 2 * k, 411 + 2 * k)  # in the second of them
    found = warm_up(draw.facts())
    assert found.warm_up == (1, 2)
    first, second, *_, last = found.steps
    assert (first.number, first.ns, first.slowdown, first.signs) == (1, 300_000, 3.0, {Sign.MODULE_LOADING})
    assert (second.slowdown, second.signs) == (1.4, {Sign.ALLOCATION})
    assert (last.slowdown, last.signs) == (None, set())


def test_slow_without_a_sign_or_a_sign_without_slowness_is_no_warm_up() -> None:
    assert warm_up(run(100, 300, 100, 100).facts()).warm_up == ()
    quick = run(100, 129, 100, 100).call("cuModuleLoadData", 110, 120).facts()
    assert warm_up(quick).warm_up == ()
    assert warm_up(quick).steps[0].signs == {Sign.MODULE_LOADING}


def test_a_late_slow_step_is_no_warm_up() -> None:
    draw = run(100, 100, 300, 100, 100).op("_compile.compile_inner (dynamo_timed)", 220, 400)
    found = warm_up(draw.facts())
    assert found.warm_up == ()
    assert found.steps[1].signs == {Sign.COMPILE}


def test_allocating_in_every_step_is_no_burst() -> None:
    draw = run(100, 200, 100, 100)
    for at in (100, 300, 400):
        for k in range(10):
            draw.call("cudaMalloc", at + 20 + 2 * k, at + 21 + 2 * k)
    assert warm_up(draw.facts()).steps[0].signs == set()


@pytest.mark.parametrize(
    ("cat", "name", "sign"),
    [
        ("overhead", "Lazy Function Loading", Sign.MODULE_LOADING),
        ("overhead", "Runtime Triggered Module Loading", Sign.MODULE_LOADING),
        ("overhead", "Driver Compiler", Sign.MODULE_LOADING),
        ("cuda_runtime", "cudaLibraryLoadData", Sign.MODULE_LOADING),
        ("user_annotation", "ncclCommInitRankConfig", Sign.COMMUNICATOR),
    ],
)
def test_signs_by_name(cat: str, name: str, sign: Sign) -> None:
    assert warm_up(run(100, 300, 100, 100).span(cat, name, 150, 160).facts()).steps[0].signs == {sign}


def test_trying_algorithms_shows_as_more_kernels() -> None:
    draw = run(100, 300, 100, 100).launch("conv_a", (106, 107), (130, 140), stream=9)
    found = warm_up(draw.facts())
    assert (found.warm_up, found.steps[0].signs) == ((1,), {Sign.MORE_KERNELS})


def test_a_window_has_nothing_to_compare_with_but_tells_its_signs() -> None:
    draw = Drawing().launch("k", (0, 1), (2, 90)).span("overhead", "Driver Compiler", 20, 30)
    found = warm_up(draw.facts())
    (only,) = found.steps
    assert (found.warm_up, only.slowdown, only.signs) == ((), None, {Sign.MODULE_LOADING})


def test_what_recording_cost() -> None:
    draw = run(100, 100, 100).frame("f.py(1): g", 1, 2)
    draw.span("overhead", "Buffer Flush", 20, 90, tid=0)  # before the used steps
    draw.span("overhead", "Buffer Flush", 120, 140, tid=0).span("overhead", "Buffer Flush", 220, 230, tid=0)
    draw.span("overhead", "Lazy Function Loading", 130, 150, tid=1)
    found = distortion(draw.facts())
    assert found.overhead_share == 0.2
    assert found.overheads == (Overhead("Buffer Flush", 2, 15_000), Overhead("Lazy Function Loading", 1, 10_000))
    assert (found.options, found.launch_ns) == (("stacks",), 4_000)


def test_a_launch_that_waits_for_room_in_the_queue_says_nothing_of_the_profiler() -> None:
    draw = Drawing().launch("long", (0, 1), (1, 100_000))
    for k in range(2000):
        draw.launch("k", (2 + k, 2.5 + k) if k < 898 else (2 + k, 2.9 + k), (100_000 + k, 100_000.5 + k))
    assert distortion(draw.facts()).launch_ns == 500


def test_recording_costs_the_host_some_time_for_each_span() -> None:
    draw = Drawing()
    for number in range(3):
        at = 100 * number
        draw.step(number, at, at + 99).launch("k", (at + 2, at + 4), (at + 10, at + 60)).op("aten::mm", at + 1, at + 5)
        draw.op("aten::mm", at + 1, at + 5, tid=777)  # no training thread: it launches nothing
    found = distortion(draw.facts())
    # Per step, the mark, an op and a call.
    assert (found.recording_ns, found.recording_share) == (3 * 350, pytest.approx(0.0105))
    draw.op("aten::add", 110, 112, **{"Input Dims": [[8, 8]]}).frame("train.py(1): main", 100, 190)
    # In two steps three ops more with shapes, of which one is new, and a frame.
    assert distortion(draw.facts()).recording_ns == (7 * 350 + 3 * 220 + 300) // 2
    assert distortion(Drawing().work("k", (0, 9)).facts()).recording_ns == 0


def test_without_launches_their_time_is_unknown() -> None:
    assert distortion(Drawing().op("aten::mm", 0, 10).facts()).launch_ns is None


def test_steadiness() -> None:
    found = steadiness(run(100, 90, 110, 100).facts())
    assert (found.count, found.mean_ns) == (3, 100_000)
    assert found.variation == pytest.approx(0.1)
    assert steadiness(Drawing().launch("k", (0, 1), (2, 90)).facts()).variation is None


@pytest.mark.parametrize(("cycle", "variation"), [(4, (200 / 3) ** 0.5 / 225), (3, (187_700 / 3) ** 0.5 / 225)])
def test_a_long_step_of_a_cycle_that_was_recorded_whole_is_no_accident(cycle: int, variation: float) -> None:
    """Four steps of 225 us on average are used: one cycle of four, or one of three and a step more."""
    synthetic = run(100, 90, 110, 600, 100).rank()
    known = Context(RankManifest(rank=0, cycle=cycle), Host(), 1, {})
    assert steadiness(Facts(replace(synthetic, context=known))).variation == pytest.approx(variation)


def test_time_by_step_splits_what_crosses_steps() -> None:
    facts = run(100, 100, 100, 100).facts()
    assert steps(facts).bounds_ns.tolist() == [100_000, 200_000, 300_000, 400_000]
    times = intervals.of([0, 150_000, 180_000, 399_000, 500_000], [50_000, 160_000, 310_000, 600_000, 510_000])
    assert time_by_step(facts, times, np.array([0, 0, 1, 1, 0]), 2).tolist() == [
        [10_000, 0, 0],
        [20_000, 100_000, 11_000],
    ]


@pytest.mark.parametrize(
    ("first", "kernels", "busy", "quicker"),
    [
        (30, 2, 10, 30_000),
        (34, 2, 10, None),  # a third of 100
        (30, 1, 10, None),  # for half of the work
        (30, 2, 60, None),  # the device works most of the time: the host had only queued
    ],
)
def test_a_first_step_that_was_quicker(first: int, kernels: int, busy: int, quicker: int | None) -> None:
    """Steps of 100 us on the host, the first one shorter; each launches two kernels."""
    draw = Drawing().step(0, 100 - first, 100)
    for k in range(kernels):
        draw.launch("k", (100 - first + k, 101 - first + k), (95 + 2 * k, 96 + 2 * k))
    for number in range(1, 5):
        at = 100 * number
        draw.step(number, at, at + 100).launch("k", (at, at + 1), (at + 2, at + 2 + busy - 1))
        draw.launch("k", (at + 90, at + 91), (at + 98, at + 99))
    assert steadiness(draw.facts()).quicker_ns == quicker


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (
            Drawing().work("early", (0, 10)).op("aten::mm", 100, 200).launch("k", (110, 112), (115, 250)),
            ["The CPU's recording begins 100 us after and ends 50.0 us before the GPU's."],
        ),
        (Drawing().op("aten::mm", 0, 1000).launch("k", (5, 7), (8, 1008)), []),  # By 8 us of 1,000.
        (Drawing().work("a", (0, 10)).work("b", (100, 200)), []),  # Of the device alone.
    ],
)
def test_the_host_s_recording_may_begin_late_and_end_early(draw: Drawing, said: list[str]) -> None:
    assert [note.what for note in not_recorded(draw.facts())] == said


def test_holes_in_graphs_are_counted() -> None:
    facts = facts_of("""
        4 steps of 0.4
        cpu  aten::mm 0-0.01
        gpu  pointwise 0.03-0.05 @0.015 graph | pointwise 0.25-0.38 @0.015 graph
    """)
    assert [note.what for note in not_recorded(facts)] == [
        "Kernels are missing in 3 gaps of the recording: 600 us, 50.0 % of the used steps."
    ]
