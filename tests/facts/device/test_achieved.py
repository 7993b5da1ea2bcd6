"""Achieved FLOP/s and MFU: values of synthetic traces by hand."""

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.device.achieved import TypeFlops, achieved_flops
from diagnose.synthetic.reading import facts_of

BF16 = 'types=["c10::BFloat16","c10::BFloat16"]'
LARGE = "shapes=[[8192,8192],[8192,8192]]"
FLOPS = 2 * 8192**3  # 1.1 TFLOP.


def products(device: str = "H100", *more: str) -> Facts:
    """Steps of 10 ms: 2 x 1.1 TFLOP in bf16, and half as much in tf32."""
    lines = (
        "3 steps of 10",
        f"device {device}",
        f"cpu  aten::mm 0-1 {LARGE} {BF16}",
        f"cpu  aten::mm 1-2 {LARGE} {BF16}",
        'cpu  aten::mm 2-3 shapes=[[8192,4096],[4096,8192]] types=["float","float"]',
        "gpu  bf16_gemm 1-3 @0.5 | bf16_gemm 3-5 @1.5 | tf32_gemm 5-9 @2.5",
    )
    return facts_of("\n".join((*lines, *more)))


def test_every_type_is_held_against_its_own_peak() -> None:
    found = achieved_flops(products())
    assert found.flops == FLOPS * 5 // 2
    assert found.flops_per_s == pytest.approx(FLOPS * 2.5 / 10e-3)
    assert found.types == (TypeFlops("bf16", 2 * FLOPS, 989e12), TypeFlops("tf32", FLOPS // 2, 495e12))
    assert found.mfu == pytest.approx((2 * FLOPS / 989e12 + FLOPS / 2 / 495e12) / 10e-3)
    assert (found.device, found.devices, found.why_no_mfu) == ("H100 SXM", 1, "")
    assert (found.counted_share, found.at_most_share) == (1.0, 0.0)


def test_kernels_whose_flops_are_not_known_are_said_not_to_be_counted() -> None:
    found = achieved_flops(products("H100", "gpu bf16_gemm 9-10"))
    assert found.flops == FLOPS * 5 // 2
    assert found.counted_share == pytest.approx(8 / 9)


def test_of_an_unknown_device_the_rate_is_known_and_no_mfu() -> None:
    found = achieved_flops(products("1080"))
    assert found.flops == FLOPS * 5 // 2
    assert found.mfu is None
    assert found.why_no_mfu.startswith("peak rates of the device")
    assert {type_.peak_flops_per_s for type_ in found.types} == {None}


def test_without_the_type_of_most_flops_there_is_no_mfu() -> None:
    text = f'3 steps of 10\ncpu aten::mm 0-1 {LARGE} types=["float","float"]\ngpu my_gemm_kernel 1-9 @0.5'
    found = achieved_flops(facts_of(text))
    assert found.types == (TypeFlops("", FLOPS, None),)
    assert (found.mfu, found.why_no_mfu) == (None, "the type that most of it multiplies in")


def test_attention_counts_as_the_most_that_it_can_be() -> None:
    shapes = "shapes=[[1,8,1024,64],[1,8,1024,64],[1,8,1024,64]] types=" + '["c10::BFloat16"]'
    text = f"3 steps of 10\ncpu aten::_scaled_dot_product_flash_attention 0-1 {shapes}\ngpu flash 1-9 @0.5"
    found = achieved_flops(facts_of(text))
    assert found.flops == 2 * 8 * 1024 * 1024 * 2 * 64
    assert found.at_most_share == 1.0


def test_without_shapes_there_are_no_flops() -> None:
    with pytest.raises(Missing, match="shapes"):
        achieved_flops(facts_of("3 steps of 10\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))
