"""How much memory was used, and how much is free where the training computes."""

import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.device.memory import (
    Churn,
    HeadRoom,
    Kept,
    Memory,
    MemoryGrowth,
    allocator_calls,
    allocator_causes,
    head_room,
    memory,
    memory_growth,
)
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.kinds import ApiKind
from diagnose.trace.manifest import Host, RankManifest
from diagnose.trace.model import Context
from tests.drawing import Drawing


@pytest.mark.parametrize(
    ("reserved", "capacity", "share"),
    [(20, 80, 0.75), (80, 80, 0.0), (None, 80, None), (20, None, None), (20, 0, None)],
)
def test_free_share(reserved: int | None, capacity: int | None, share: float | None) -> None:
    assert Memory(0, 10, reserved, capacity).free_share == share


SYNTHETIC = "3 steps of 10\ndevice A100\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"


def test_memory_events_tell_the_peaks() -> None:
    (found,) = memory(facts_of(f"memory 1 of 3 GB, 1 GB more a step\n{SYNTHETIC}"))
    assert found == Memory(0, 3_000_000_000, 5_000_000_000, 85_198_045_184)


def test_without_events_the_process_tells_the_peaks() -> None:
    facts = facts_of(SYNTHETIC)
    with pytest.raises(Missing, match="memory events"):
        memory(facts)
    known = RankManifest(rank=0, allocator={"most_allocated_bytes": 10, "most_reserved_bytes": 20})
    (found,) = memory(Facts(replace(facts.rank, context=Context(known, Host(), 1))))
    assert found == Memory(0, 10, 20, 85_198_045_184)


def test_of_a_device_it_is_what_its_allocator_never_reserved() -> None:
    """5 of an A100's 85.2 GB were reserved in the end."""
    found = head_room(facts_of(f"memory 1 of 3 GB, 1 GB more a step\n{SYNTHETIC}"))
    assert found == HeadRoom(85_198_045_184 - 5_000_000_000, on_host=False)


def test_of_a_machine_it_is_half_of_a_rank_s_part() -> None:
    facts = facts_of("3 steps of 10\ncpu aten::mm 0-1")
    known = Context(RankManifest(rank=0), Host(memory_bytes=64_000), 4)
    assert head_room(Facts(replace(facts.rank, context=known))) == HeadRoom(8_000, on_host=True)


def test_without_a_record_it_is_not_known() -> None:
    for synthetic in (SYNTHETIC, "3 steps of 10\ncpu aten::mm 0-1"):
        with pytest.raises(Missing, match="memory"):
            head_room(facts_of(synthetic))


MB = 1_000_000


def synthetic(steps: int, leaks: list[int]) -> Facts:
    """Steps of 1 ms. Each allocates 8 MB in a forward op and frees them in a backward op, and 2 MB, which are kept.
    `leaks`: MB that each step keeps besides, of tensors of 1 MB."""
    drawing, total = Drawing(), 100 * MB
    drawing.frame("train.py(1): main", 0, 1000 * steps)

    def event(ts: float, size: int) -> None:
        nonlocal total
        total += size
        args = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": size}
        args |= {"Total Allocated": total, "Total Reserved": 400 * MB}
        at = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "pid": 100, "tid": 100, "ts": ts}
        drawing.events.append({**at, "name": "[memory]", "args": args})

    for step in range(steps):
        at = 1000 * step
        drawing.step(step, at, at + 999).op("aten::linear", at + 100, at + 200).op("aten::mm", at + 110, at + 190)
        drawing.op("aten::mul", at + 300, at + 400).op("MmBackward0", at + 500, at + 600)
        event(at + 120, 8 * MB)
        event(at + 310, 2 * MB)
        for k in range(leaks[step]):
            event(at + 320 + k, MB)
        event(at + 510, -8 * MB)
    return Facts(drawing.rank())


def test_even_growth_and_what_is_kept() -> None:
    found = memory_growth(synthetic(6, [0] * 6))
    assert found.ends_bytes == tuple((100 + 2 * step) * MB for step in range(1, 7))
    assert found.step_bytes == 2 * MB
    assert (found.kept.bytes, found.kept.op) == (2 * MB, "aten::mul")


def test_most_of_it_is_named() -> None:
    found = memory_growth(synthetic(5, [3] * 5))
    assert (found.step_bytes, found.kept) == (5 * MB, Kept(3 * MB, "aten::mul", found.kept and found.kept.site))


def test_uneven_growth_is_none() -> None:
    """Rises of 2, 12, 2, 12 and 2 MB: the median is 2, so that all count; of 12, 2, 12, 12 and 12 not."""
    assert memory_growth(synthetic(6, [0, 0, 10, 0, 10, 0])).step_bytes == 6 * MB
    found = memory_growth(synthetic(6, [0, 10, 0, 10, 10, 10]))
    assert (found.step_bytes, found.kept) == (0, None)


def test_totals_at_the_ends_of_steps() -> None:
    found = memory_growth(facts_of("5 steps of 10\nmemory 1 of 3 GB\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))
    assert found == MemoryGrowth(0, (1_000_000_000,) * 5, 0, None)


def test_what_is_missing() -> None:
    with pytest.raises(Missing, match="memory events"):
        memory_growth(facts_of("5 steps of 10\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))
    with pytest.raises(Missing, match="memory of 5 steps"):
        memory_growth(facts_of("4 steps of 10\nmemory 1 of 3 GB\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))


EVERY_STEP = range(0, 3000, 1000)


def steady(*starts: int) -> Drawing:
    """Steps of 1000 us, in each of which the device is busy from 100 to 600 us and from 900 to 1000 us."""
    draw = Drawing()
    for number, at in enumerate(starts):
        draw.step(number, at, at + 990)
        draw.launch("a", (at + 1, at + 2), (at + 100, at + 600))
        draw.launch("b", (at + 890, at + 891), (at + 900, at + 1000))
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
    assert (len(frees.ids), frees.total_calls) == (24, 16)
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
    found = allocator_calls(draw.facts())
    assert [one.call for one in found] == ["cudaHostAlloc", "cudaMalloc", "cudaFree"]
    assert {one.churn for one in found} == {Churn.OTHER}


@pytest.mark.parametrize(("frame", "frees", "churn"), [("empty_cache", 1, Churn.EMPTY_CACHE), ("f", 8, Churn.RETRY)])
def test_where_frames_are_recorded_these_tell_who_frees_and_its_line(frame: str, frees: int, churn: Churn) -> None:
    draw = steady(*EVERY_STEP).frame("/home/me/train.py(40): step", 1600, 1800)
    emptying(draw.frame(f"torch/cuda/memory.py(220): {frame}", 1610, 1720), 1000, frees)
    (found,) = allocator_calls(draw.facts())
    assert (found.churn, found.site) == (churn, Site("/home/me/train.py", 40, "step"))


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
