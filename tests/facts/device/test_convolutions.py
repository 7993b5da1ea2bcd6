"""What convolutions take, with which kernels, and whether their sizes are fixed."""

import pytest

from diagnose.facts.device.convolutions import Convolutions, convolutions
from diagnose.synthetic.reading import facts_of

WGRAD = '"void cudnn::cnn::wgrad_alg0_engine<float, 128>(int)"'


def found(more: str = "") -> Convolutions:
    """20 ms in a kernel of a known size, 10 ms in one for any size, which a convolution's op runs; 5 ms in none."""
    return convolutions(
        facts_of(f"""
        4 steps of 100
        device A100
        cpu  aten::cudnn_convolution 0-1 | aten::convolution_backward 2-3 | aten::add 4-5 | sync 6-99
        gpu  bf16_gemm 1-21 @0.5 | {WGRAD} 21-31 @2.5 | pointwise 31-36 @4.5
        {more}
        """)
    )


def test_kernels_of_ops_that_convolve() -> None:
    one = found()
    assert (one.ns, one.generic_ns) == (30_000_000, 10_000_000)
    assert one.generic == ("cudnn::cnn::wgrad_alg0_engine",)
    assert (len(one.ids), one.fixed, one.reached) == (8, True, None)


def test_what_a_convolution_reaches() -> None:
    """One of 2 x 64 x 256 x 3 x 3 x 256 x 56 x 56 FLOPs for each of two gradients, in bf16 at 271 TFLOP/s at best."""
    types = 'types=["c10::BFloat16","c10::BFloat16","c10::BFloat16"]'
    flops = 2 * 2 * 64 * 256 * 9 * 256 * 56 * 56
    facts = facts_of(f"""
        4 steps of 100
        device A100
        cpu  aten::convolution_backward 2-3 shapes=[[64,256,56,56],[64,256,56,56],[256,256,3,3],[]] {types} | sync 6-99
        gpu  bf16_gemm 21-31 @2.5
    """)
    assert convolutions(facts).reached == pytest.approx(flops / 271e12 / 10e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("more", "fixed"),
    [
        ("gpu  conv 40-50 @5.5", True),
        ("gpu  conv 40-50 @5.5 not in 3", False),  # another one in a step
        ("gpu  conv 40-50 @5.5 in 0", True),  # which is not used
        ("gpu  conv 40-50 @5.5 blocks=8 in 0,1\ngpu conv 40-50 @5.5 blocks=9 in 2,3", False),  # of another size
    ],
)
def test_sizes_are_fixed_if_all_steps_run_the_same_kernels(more: str, fixed: bool) -> None:
    assert found(more).fixed is fixed


def test_one_step_tells_nothing_of_sizes() -> None:
    facts = facts_of("cpu aten::cudnn_convolution 0-1 | sync 2-99\ngpu conv 1-21 @0.5")
    assert convolutions(facts).fixed is None


def test_without_convolutions() -> None:
    one = convolutions(facts_of("4 steps of 10\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))
    assert (one.ns, one.generic, one.fixed, len(one.ids)) == (0, (), True, 0)
