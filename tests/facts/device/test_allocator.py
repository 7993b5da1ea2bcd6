"""Calls of the driver's allocator in steps: who asks for them, and why."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.device.allocator import Churn, allocator_calls, allocator_causes
from diagnose.trace.frames import Site
from diagnose.trace.kinds import ApiKind
from tests.drawing import Drawing

EVERY_STEP = range(0, 3000, 1000)


def steady(*starts: int) -> Drawing:
    """Steps of 1000 us, in each of which the device is busy from 100 to 600 us and from 900 to 1000 us."""
    draw = Drawing()
    for number, at in enumerate(starts):
        draw.step(number, at, at + 990)
        draw.launch("a", (at + 1, at + 2), (at + 100, at + 600)).launch(
            "b", (at + 890, at + 891), (at + 900, at + 1000)
        )
    return draw


def emptying(draw: Drawing, at: int, frees: int = 8) -> None:
    """Frees of 10 us each from 620 us on, outside any op."""
    for k in range(frees):
        draw.call("cudaFree", at + 620 + 10 * k, at + 630 + 10 * k)


def test_frees_in_a_row_outside_any_op_are_a_cache_given_back() -> None:
    draw = steady(*EVERY_STEP)
    for at in EVERY_STEP:
        emptying(draw, at)
        draw.op("aten::empty", at + 10, at + 40).call("cudaMalloc", at + 12, at + 32)
    frees, mallocs = allocator_calls(draw.facts())
    assert (frees.call, frees.kind, frees.asked_by, frees.churn) == ("cudaFree", ApiKind.FREE, "", Churn.EMPTY_CACHE)
    assert (len(frees.ids), frees.total_calls, frees.steps_seen) == (24, 16, 2)
    assert (frees.host_ns, frees.idle_ns) == (80_000, 80_000)  # the device is idle from 600 to 900 us
    assert (mallocs.call, mallocs.asked_by, mallocs.total_calls) == ("cudaMalloc", "aten::empty", 2)
    assert (mallocs.host_ns, mallocs.idle_ns) == (20_000, 20_000)  # and from 0 to 100 us
    assert mallocs.churn is Churn.EMPTY_CACHE  # what was given back has to be got again


def test_frees_in_a_row_inside_an_op_are_a_retry() -> None:
    draw = steady(*EVERY_STEP)
    for at in EVERY_STEP:
        draw.op("aten::linear", at + 610, at + 710).op("aten::empty", at + 611, at + 705)
        emptying(draw, at)
    (found,) = allocator_calls(draw.facts())
    assert (found.asked_by, found.churn) == ("aten::linear", Churn.RETRY)


def test_tensors_freed_one_by_one_are_not_cached_at_all() -> None:
    draw = steady(*EVERY_STEP)
    for at in EVERY_STEP:
        emptying(draw, at)  # zero_grad frees many in a row too
        for k in range(10):
            draw.op("aten::relu", at + 10 * k, at + 10 * k + 8).call("cudaFree", at + 10 * k + 1, at + 10 * k + 2)
            draw.call("cudaLaunchKernel", at + 10 * k + 3, at + 10 * k + 4)
    assert {found.churn for found in allocator_calls(draw.facts())} == {Churn.UNCACHED}


def test_single_calls_now_and_then_are_none_of_these() -> None:
    draw = steady(*EVERY_STEP).call("cudaFree", 1650, 1655).op("aten::empty", 1660, 1690).call("cudaMalloc", 1665, 1680)
    draw.call("cudaHostAlloc", 2700, 2760)
    assert [(found.call, found.churn, found.steps_seen) for found in allocator_calls(draw.facts())] == [
        ("cudaHostAlloc", Churn.OTHER, 1),
        ("cudaMalloc", Churn.OTHER, 1),
        ("cudaFree", Churn.OTHER, 1),
    ]


def test_a_frame_of_empty_cache_tells_even_of_a_single_free_and_its_line_is_known() -> None:
    draw = steady(*EVERY_STEP).call("cudaFree", 1650, 1655)
    draw.frame("/home/me/train.py(40): step", 1600, 1700).frame("torch/cuda/memory.py(220): empty_cache", 1640, 1660)
    (found,) = allocator_calls(draw.facts())
    assert (found.churn, found.site) == (Churn.EMPTY_CACHE, Site("/home/me/train.py", 40, "step"))


def test_frees_in_a_row_that_no_frame_explains_are_a_retry() -> None:
    draw = steady(*EVERY_STEP).frame("/home/me/train.py(40): step", 1600, 1800)
    emptying(draw, 1000)
    (found,) = allocator_calls(draw.facts())
    assert (found.churn, found.asked_by) == (Churn.RETRY, "")


def test_calls_of_device_memory_by_cause() -> None:
    draw = steady(*EVERY_STEP)
    for at in EVERY_STEP:
        emptying(draw, at)
        draw.op("aten::empty", at + 10, at + 40).call("cudaMalloc", at + 12, at + 32)
        draw.call("cudaHostAlloc", at + 710, at + 720)
    (found,) = allocator_causes(draw.facts())
    assert (found.churn, found.names) == (Churn.EMPTY_CACHE, ("cudaFree", "cudaMalloc"))
    assert (len(found.ids), found.calls, found.later_share) == (27, 9.0, 1.0)
    assert (found.host_ns, found.idle_ns) == (100_000, 100_000)
    assert (found.site, found.maps_memory, found.hip) == (None, False, False)


def test_what_only_the_first_steps_need_is_there_in_the_later_half() -> None:
    draw = steady(*range(0, 6000, 1000))  # five are used, the later three are 3 to 5
    for at in (1000, 2000, 5000):
        draw.op("aten::empty", at + 10, at + 40).call("cudaMalloc", at + 12, at + 32)
    (found,) = allocator_causes(draw.facts())
    assert (found.churn, found.calls, found.later_share) == (Churn.OTHER, 3 / 5, 1 / 3)


@pytest.mark.parametrize(
    ("call", "maps", "hip"), [("cuMemMap", True, False), ("hipMemRelease", True, True), ("cudaFree", False, False)]
)
def test_expandable_segments_map_memory(call: str, maps: bool, hip: bool) -> None:
    draw = steady(*EVERY_STEP).call(call, 1650, 1655)
    draw.events[-1]["cat"] = "cuda_driver" if call.startswith("cuM") else "cuda_runtime"
    (found,) = allocator_causes(draw.facts())
    assert (found.maps_memory, found.hip) == (maps, hip)


def test_warm_up_is_no_churn() -> None:
    draw = steady(*EVERY_STEP)
    emptying(draw, 0)
    assert allocator_calls(draw.facts()) == ()


def test_without_calls_or_device() -> None:
    with pytest.raises(Missing, match="device work"):
        allocator_calls(Drawing().op("aten::mm", 0, 10).facts())
    with pytest.raises(Missing, match="runtime calls"):
        allocator_calls(Drawing().op("aten::mm", 0, 10).work("k", (0, 5)).facts())
