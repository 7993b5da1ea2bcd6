"""Precision, roofline and filling: synthetic kernels with figures by hand."""

import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.inputs import peaks
from diagnose.facts.device.kernels import filling
from diagnose.facts.device.precision import large_products, precision, roofline
from diagnose.synthetic.reading import facts_of


def test_time_by_precision() -> None:
    facts = facts_of("""
        3 steps of 100
        device A100
        cpu  aten::mm 0-1 | aten::cudnn_convolution 2-3 | aten::mm 4-5 | aten::mm 6-7
        gpu  sgemm 10-30 @0.5 | conv 30-35 @2.5 | tf32_gemm 40-50 @4.5 | bf16_gemm 60-68 @6.5 | pointwise 70-99 @8
    """)
    found = precision(facts)
    # ms: sgemm 20, conv 5, tf32 10, bf16 8.
    assert (found.fp32_ns, found.full_ns) == (20_000_000, 35_000_000)
    assert found.full_share == pytest.approx(0.35)
    assert len(found.fp32_ids) == 3  # every step, also the first, which is not used
    # Without shapes the ratio of the rates: fp32 19.5, tf32 156, bf16 312 TFLOP/s.
    assert found.tf32_left == pytest.approx(19.5 / 156)
    assert found.half_left == pytest.approx((25 * 19.5 / 312 + 10 * 156 / 312) / 35)
    assert (found.half_dtype, len(found.pointwise_ids)) == ("bf16", 3)


def test_with_shapes_the_floor_is_compute_or_memory() -> None:
    drawing = """
        3 steps of 100
        device A100
        cpu  aten::mm 0-1 shapes={shapes} types=["float","float"]
        gpu  sgemm 10-30 @0.5
    """
    # 2 * 4096^3 flops at 271/312 of 156 TFLOP/s, of 20 ms.
    square = precision(facts_of(drawing.format(shapes="[[4096,4096],[4096,4096]]")))
    assert square.tf32_left == pytest.approx(2 * 4096**3 / (156e12 * 271 / 312) / 0.020, rel=1e-3)
    # A vector times a matrix reads 1 GiB, at 90 % of 2039 GB/s.
    vector = precision(facts_of(drawing.format(shapes="[[1,16384],[16384,16384]]")))
    moved = 4 * (16384**2 + 2 * 16384)
    assert vector.tf32_left == pytest.approx(moved / (2039e9 * 0.90) / 0.020, rel=1e-3)


def test_a_gpu_without_the_type() -> None:
    found = precision(facts_of("3 steps of 10\ndevice V100\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))
    assert (found.tf32_left, found.half_dtype) == (None, "fp16")
    assert found.half_left == pytest.approx(15.7 / 125)


def test_a_gpu_whose_rates_are_not_known() -> None:
    with pytest.raises(Missing, match="peak rates"):
        precision(facts_of("3 steps of 10\ndevice 1080\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))


@pytest.mark.parametrize(
    ("name", "called", "share"),
    [
        ("Tesla V100-DGXS-32GB", "Tesla V100-DGXS-32GB", 128 / 1024),  # fp32 beside 16 bits, of each multiprocessor
        ("", "a GPU with ampere_* kernels", 256 / 512),  # the kernels are called ampere_
    ],
)
def test_a_gpu_that_its_family_tells(name: str, called: str, share: float) -> None:
    facts = facts_of("3 steps of 10\ndevice V100\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5")
    devices = (replace(facts.rank.provenance.devices[0], name=name),) if name else ()
    told = Facts(replace(facts.rank, provenance=replace(facts.rank.provenance, devices=devices)))
    found = precision(told)
    assert (found.device, found.rates_known) == (called, False)
    assert found.half_left == pytest.approx(share)
    with pytest.raises(Missing, match="peak rates"):
        peaks(told)


def test_roofline_tells_odd_sizes_from_the_rest() -> None:
    facts = facts_of("""
        3 steps of 20
        cpu  aten::mm 0-0.1 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16"]
        cpu  aten::mm 0.2-0.3 shapes=[[4096,4097],[4097,4096]] types=["c10::BFloat16"]
        cpu  aten::mm 0.4-0.5 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16"] | aten::mm 0.6-0.7
        gpu  bf16_gemm 1-9 @0.05 | bf16_gemm 9-12 @0.25 | bf16_gemm 12-14 @0.45 | bf16_gemm 14-19 @0.65
    """)
    found = roofline(facts)
    # At 794.5 TFLOP/s, which an H100 reaches.
    least = 2 * 8192**3 / 794.5e12 * 1e3
    odd = 2 * 4096 * 4097 * 4096 / 794.5e12 * 1e3
    assert (found.known_ns, found.slow_ns, found.misaligned_ns) == (13_000_000, 8_000_000, 3_000_000)
    assert found.slow_floor == pytest.approx(least / 8, rel=1e-3)
    assert found.misaligned_floor == pytest.approx(odd / 3, rel=1e-3)


def test_an_ops_cost_is_shared_out_among_its_kernels() -> None:
    facts = facts_of("""
        3 steps of 20
        cpu  aten::mm 0-0.1 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16"]
        gpu  bf16_gemm 1-5 @0.05 | bf16_gemm 5-9 @0.06
    """)
    found = roofline(facts)
    assert found.slow_ns == 8_000_000
    assert found.slow_floor == pytest.approx(2 * 8192**3 / 794.5e12 * 1e3 / 8, rel=1e-3)


def test_without_shapes_nothing_is_said_about_the_roofline() -> None:
    with pytest.raises(Missing, match="record_shapes"):
        roofline(facts_of("3 steps of 10\ncpu aten::mm 0-1\ngpu bf16_gemm 1-9 @0.5"))


def test_small_kernels() -> None:
    facts = facts_of("""
        3 steps of 10
        gpu  bf16_gemm 1-4 @0.5 blocks=131 | bf16_gemm 4-5 @0.6 blocks=132 | allreduce 5-9 @0.7 blocks=8
    """)
    found = filling(facts)
    # An H100 has 132 multiprocessors; communication is no compute.
    assert (found.underfilled_ns, found.compute_ns, found.underfilled_share) == (3_000_000, 4_000_000, 0.75)
    assert (len(found.underfilled_ids), found.free_memory_share) == (3, None)
    assert found.filled_share == pytest.approx(131 / 132)


def test_kernels_that_leave_room_for_communication_fill_what_is_left() -> None:
    """112 blocks beside a collective of 20 fill an H100's 132 multiprocessors; once it is over they do not."""
    synthetic = """
        3 steps of 10
        gpu 20 allreduce 1-5 @0.7 blocks=20
        gpu  bf16_gemm 2-4 @0.5 blocks=112 | bf16_gemm 6-9 @0.6 blocks=112
    """
    found = filling(facts_of(synthetic))
    assert (found.underfilled_ns, found.compute_ns) == (3_000_000, 5_000_000)
    assert found.filled_share == pytest.approx(112 / 132)


@pytest.mark.parametrize(("device", "size", "ns"), [("H100", 2048, 8_000_000), ("H100", 2047, 0), ("A100", 2048, None)])
def test_products_that_are_large_enough_for_fp8(device: str, size: int, ns: int | None) -> None:
    shapes = f'shapes=[[{size},4096],[4096,4096]] types=["c10::BFloat16","c10::BFloat16"]'
    found = large_products(
        facts_of(f"3 steps of 10\ndevice {device}\ncpu aten::mm 0-1 {shapes}\ngpu bf16_gemm 1-9 @0.5")
    )
    assert (found.ns if found else None) == ns
