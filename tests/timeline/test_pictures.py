"""What a page draws besides the timeline: points by hand, exposed communication against a count of microseconds."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.contracts.timeline import (
    CollectiveBar,
    CopySize,
    CopySizes,
    MemoryCurve,
    Pictures,
    RooflineKind,
    RooflineOp,
)
from diagnose.facts.core.base import Facts, Missing
from diagnose.timeline import pictures as module
from diagnose.timeline.pictures import (
    MOST_POINTS,
    collective_bars,
    copy_sizes,
    launch_curve,
    memory_curves,
    pictures,
    roofline_picture,
)
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.kinds import KernelKind
from tests.drawing import MAIN, Drawing

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GLOO = "gloo:all_reduce"
SGEMM = "ampere_sgemm_128x64_nn"


def on(device: str) -> Drawing:
    return Drawing(deviceProperties=[{"id": 0, "name": device}])


def a100() -> Drawing:
    return on("NVIDIA A100-SXM4-40GB")


# ---- launches


def test_the_launch_curve_has_a_point_for_each_piece_of_time_with_launches() -> None:
    draw = Drawing().launch("a", (0, 0.2), (100, 200)).launch("b", (0.4, 0.6), (200, 250))
    draw.launch("c", (0.8, 0.9), (250, 260)).launch("d", (150, 151), (260, 299.9))
    found = launch_curve(draw.facts())
    # From the first call to the last end 299.9 us: pieces of 1 us.
    assert found.moment_ns == (500, 150_500)
    assert (found.depth_least, found.depth_median) == ((0, 3), (1, 3))
    assert found.delay_median_ns == (199_600, 110_000)


def test_launches_of_steps_not_used_are_not_in_the_curve() -> None:
    draw = Drawing().step(0, 0, 10).launch("first", (1, 2), (5, 20)).step(1, 10, 90)
    draw.launch("a", (12, 13), (20, 90)).launch("b", (40, 41), (90, 100))
    found = launch_curve(draw.facts())
    # Of the used step's 80 us and 8 before, pieces of 88_000 // 300 + 1 = 294 ns.
    assert found.moment_ns == (147, 28_000 // 294 * 294 + 147)
    assert found.depth_least == found.depth_median == (1, 1)


def test_a_launch_curve_is_bounded() -> None:
    draw = Drawing()
    for k in range(329):  # each 10 ns, of 3,290
        draw.launch("k", (k / 100, k / 100), (k / 100, (k + 1) / 100))
    found = launch_curve(draw.facts())
    assert 0.9 * MOST_POINTS < len(found.moment_ns) <= MOST_POINTS
    assert list(found.moment_ns) == sorted(set(found.moment_ns))


# ---- copies


def copying(draw: Drawing) -> Drawing:
    """A used step with three pageable copies up, one pinned, one down, and one without a size."""
    draw.step(0, 0, 10).copy("HtoD (Pageable -> Device)", (1, 2), (2, 9), 1000).step(1, 10, 100)
    for k, dur in enumerate((2, 9, 4)):
        draw.copy("HtoD (Pageable -> Device)", (20 + 10 * k, 21 + 10 * k), (20 + 10 * k, 20 + 10 * k + dur), 1000)
    draw.copy("HtoD (Pinned -> Device)", (50, 51), (50, 70), 1000)
    draw.copy("DtoH (Device -> Pageable)", (75, 76), (75, 76), 1000)
    draw.copy("HtoD (Pinned -> Device)", (77, 78), (77, 79), 2000)
    return draw.launch("Memcpy HtoD (Pinned -> Device)", (80, 81), (80, 100), api="cudaMemcpyAsync", cat="gpu_memcpy")


def test_copies_are_grouped_by_direction_memory_and_size_the_longest_together_first() -> None:
    assert copy_sizes(copying(Drawing()).facts()).sizes == (
        CopySize(Direction.H2D, HostMemory.PINNED, 1000, 1, 20_000),
        CopySize(Direction.H2D, HostMemory.PAGEABLE, 1000, 3, 4_000),
        CopySize(Direction.H2D, HostMemory.PINNED, 2000, 1, 2_000),
        CopySize(Direction.D2H, HostMemory.PAGEABLE, 1000, 1, 1_000),
    )


def test_the_longest_groups_of_copies_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_POINTS", 2)
    assert [size.ns for size in copy_sizes(copying(Drawing()).facts()).sizes] == [20_000, 4_000]


@pytest.mark.parametrize(
    ("device", "rate"),
    [
        ("Tesla V100-SXM2-16GB", 15.75e9),
        ("NVIDIA A100-SXM4-40GB", 31.5e9),
        ("NVIDIA H100 80GB HBM3", 63e9),
        ("NVIDIA GH200 480GB", None),  # not reached through PCIe
        ("NVIDIA GeForce GTX 1080 Ti", None),
    ],
)
def test_the_rate_of_the_link_is_that_of_the_device(device: str, rate: float | None) -> None:
    assert copy_sizes(copying(on(device)).facts()).link_bytes_per_s == rate


def test_without_a_device_s_name_the_link_is_unknown() -> None:
    assert copy_sizes(copying(Drawing()).facts()).link_bytes_per_s is None


def test_devices_of_different_kinds_have_no_link_in_common() -> None:
    names = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")
    draw = copying(Drawing(deviceProperties=[{"id": k, "name": name} for k, name in enumerate(names)]))
    assert copy_sizes(draw.facts()).link_bytes_per_s == 31.5e9  # the other one did nothing
    assert copy_sizes(draw.work("k", (90, 95), device=1).facts()).link_bytes_per_s is None


# ---- collectives


def test_collectives_in_order_of_start_with_what_compute_does_not_hide() -> None:
    draw = Drawing().step(0, 0, 10).launch(NCCL, (1, 2), (3, 20), stream=20).step(1, 10, 90)
    draw.launch("gemm", (12, 13), (25, 40))
    draw.launch("ncclDevKernel_SendRecv(x)", (16, 17), (70, 100), stream=21)
    size = {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 100, "Out msg nelems": 50}
    draw.launch(NCCL, (14, 15), (30, 60), stream=20, **size)
    # The timeline begins at 12 us.
    assert collective_bars(draw.facts()) == (
        CollectiveBar("allreduce", 18_000, 30_000, 20_000, 200),
        CollectiveBar("send_recv", 58_000, 30_000, 30_000, None),
    )


def test_the_longest_collectives_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Drawing()
    for start, end in ((0, 9), (10, 12), (20, 27), (30, 38)):
        draw.work(NCCL, (start, end))
    monkeypatch.setattr(module, "MOST_POINTS", 3)
    found = [(one.start_ns, one.dur_ns) for one in collective_bars(draw.facts())]
    assert found == [(0, 9_000), (20_000, 7_000), (30_000, 8_000)]


pieces = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8)


@settings(max_examples=50)
@given(pieces, pieces)
def test_exposed_is_each_microsecond_without_compute(
    compute: list[tuple[int, int]], communication: list[tuple[int, int]]
) -> None:
    draw = Drawing().work("Memset (Device)", (0, 100), cat="gpu_memset")
    for stream, (start, dur) in enumerate(compute):
        draw.work("gemm", (start, start + dur), stream=20 + stream)
    for stream, (start, dur) in enumerate(communication):
        draw.work(NCCL, (start, start + dur), stream=40 + stream)
    computing = {at for start, dur in compute for at in range(start, start + dur)}
    expected = [
        (1000 * start, 1000 * dur, 1000 * len(set(range(start, start + dur)) - computing))
        for start, dur in communication
    ]
    found = collective_bars(draw.facts())
    assert sorted((one.start_ns, one.dur_ns, one.exposed_ns) for one in found) == sorted(expected)
    assert [one.start_ns for one in found] == sorted(one.start_ns for one in found)


# ---- roofline


def product(draw: Drawing, at: float, took: float, kernel: str = SGEMM, **told: Any) -> None:
    """A product of 512 x 1024 and 1024 x 256 in fp32, whose kernel runs from 2 us after its start."""
    said = {"Input Dims": [[512, 1024], [1024, 256]], "Input type": ["float", "float"], **told}
    draw.op("aten::mm", at, at + 2, **said).launch(kernel, (at + 0.5, at + 1), (at + 2, at + 2 + took))


FLOPS = 2 * 512 * 1024 * 256
BYTES = 4 * (512 * 1024 + 1024 * 256 + 512 * 256)


def test_a_product_under_the_roof() -> None:
    draw = a100()
    for number in range(3):
        draw.step(number, 1000 * number, 1000 * number + 1000)
        product(draw, 1000 * number, 100)
        product(draw, 1000 * number + 500, 300)
    found = roofline_picture(draw.facts())
    # Two calls in each of two used steps, 400 us a step.
    assert found.ops == (
        RooflineOp("aten::mm", (512, 256, 1024), "fp32", 4, 400_000, FLOPS, BYTES, pytest.approx(2 * FLOPS / 400e-6)),
    )
    rate = pytest.approx(2 * FLOPS / 400e-6)
    assert found.kinds == (RooflineKind(KernelKind.GEMM, 4, 400_000, 4 * FLOPS, 4 * BYTES, rate),)
    assert found.device == "A100 SXM 40 GB"
    assert (found.bytes_per_s, found.flops_per_s) == (1555e9, {"fp32": 19.5e12})


def test_calls_that_differ_in_size_or_type_are_points_of_their_own_the_longest_first() -> None:
    draw, half = a100(), {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
    product(draw, 0, 50)
    product(draw, 100, 80, "ampere_bf16_s16816gemm_bf16_128x64_nn", **half)
    product(draw, 200, 20, **{"Input Dims": [[8, 16], [16, 4]]})
    product(draw, 300, 10, "attn_fwd")  # in fp32 or tf32: its name does not say
    found = roofline_picture(draw.facts())
    assert [(op.dtype, op.dims, op.ns) for op in found.ops] == [
        ("bf16", (512, 256, 1024), 80_000),
        ("fp32", (512, 256, 1024), 50_000),
        ("fp32", (8, 4, 16), 20_000),
        ("", (512, 256, 1024), 10_000),
    ]
    assert [(op.flops, op.bytes) for op in found.ops[:3]] == [
        (FLOPS, BYTES // 2),
        (FLOPS, BYTES),
        (2 * 8 * 4 * 16, 4 * (8 * 16 + 16 * 4 + 8 * 4)),
    ]
    assert found.flops_per_s == {"bf16": 312e12, "fp32": 19.5e12}


def test_the_longest_points_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = a100()
    for k, took in enumerate((10, 30, 20)):
        product(draw, 100 * k, took, **{"Input Dims": [[8 + k, 16], [16, 4]]})
    monkeypatch.setattr(module, "MOST_POINTS", 2)
    assert [op.dims for op in roofline_picture(draw.facts()).ops] == [(9, 4, 16), (10, 4, 16)]


# ---- memory


def allocated(draw: Drawing, at: float, total: int, device: int = 0, **args: Any) -> None:
    said = {"Device Type": 1, "Device Id": device, "Bytes": 1, "Total Allocated": total, "Total Reserved": 1000 + total}
    event = {"ph": "i", "s": "t", "name": "[memory]", "pid": MAIN, "tid": MAIN, "ts": at, "args": said | args}
    draw.events.append(event)


def test_a_memory_curve_has_the_most_and_the_least_of_each_piece_of_time() -> None:
    draw = Drawing().launch("k", (20, 21), (25, 60))
    for at, total in ((10, 300), (10.05, 100), (20, 700), (39.9, 500)):
        allocated(draw, at, total)
    # 29.9 us in pieces of 100 ns; the timeline begins at 20 us.
    assert memory_curves(draw.facts()) == (
        MemoryCurve(0, (-10_000, 0, 19_900), (300, 700, 500), (1300, 1700, 1500), (100, 700, 500)),
    )


def test_each_device_has_its_curve_and_the_host_none() -> None:
    draw = Drawing().launch("k", (0, 1), (1, 60))
    allocated(draw, 5, 10, device=1)
    allocated(draw, 7, 20)
    allocated(draw, 9, 30, device=1)
    allocated(draw, 8, 40, **{"Device Type": 0, "Device Id": -1})
    first, second = memory_curves(draw.facts())
    assert (first.device, first.allocated_bytes) == (0, (20,))
    assert (second.device, second.allocated_bytes) == (1, (10, 30))


def test_a_memory_curve_is_bounded() -> None:
    draw = Drawing().launch("k", (0, 1), (1, 60))
    for k in range(330):  # each 10 ns, of 3,290
        allocated(draw, k / 100, k)
    (found,) = memory_curves(draw.facts())
    assert 0.9 * MOST_POINTS < len(found.moment_ns) <= MOST_POINTS
    assert found.allocated_bytes[-1] == 329


# ---- together


def with_product(draw: Drawing, **told: Any) -> Drawing:
    product(draw, 0, 100, **told)
    return draw


def without_totals() -> Drawing:
    draw = Drawing().launch("k", (0, 1), (1, 60))
    said = {"Device Type": 1, "Device Id": 0, "Bytes": 1}
    draw.events.append({"ph": "i", "s": "t", "name": "[memory]", "pid": MAIN, "tid": MAIN, "ts": 5, "args": said})
    return draw


@pytest.mark.parametrize(
    ("picture", "draw", "match"),
    [
        (launch_curve, lambda: Drawing().work("k", (0, 5)), "launches of device work"),
        (copy_sizes, lambda: Drawing().op("aten::mm", 0, 10), "device work"),
        (collective_bars, lambda: Drawing().op("aten::mm", 0, 10).span("user_annotation", GLOO, 2, 8), "device work"),
        (roofline_picture, lambda: a100().op("aten::mm", 0, 2).launch(SGEMM, (0.5, 1), (2, 9)), "record_shapes"),
        (roofline_picture, lambda: with_product(on("NVIDIA GeForce GTX 1080 Ti")), "peak rates"),
        (roofline_picture, lambda: with_product(a100(), **{"Input type": []}), "ops whose cost is known"),
        (memory_curves, lambda: Drawing().launch("k", (0, 1), (1, 60)), "profile_memory"),
        (memory_curves, without_totals, "profile_memory"),
    ],
)
def test_what_a_picture_cannot_do_without(
    picture: Callable[[Facts], object], draw: Callable[[], Drawing], match: str
) -> None:
    with pytest.raises(Missing, match=match):
        picture(draw().facts())


def test_what_a_recording_cannot_give_is_none() -> None:
    assert pictures(Drawing().op("aten::mm", 0, 10).facts()) == Pictures(None, None, None, None, None)
    device_alone = pictures(Drawing().work("k", (0, 10)).facts())
    assert device_alone == Pictures(None, CopySizes((), None), (), None, None)


def test_all_pictures_of_a_recording_that_has_everything() -> None:
    draw = a100().launch("k", (0, 1), (1, 60))
    product(draw, 70, 100)
    allocated(draw, 5, 10)
    facts = draw.facts()
    assert pictures(facts) == Pictures(
        launch_curve(facts), copy_sizes(facts), collective_bars(facts), roofline_picture(facts), memory_curves(facts)
    )
