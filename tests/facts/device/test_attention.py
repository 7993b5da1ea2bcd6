"""Fused attention on a slower backend than the GPU has: figures by hand."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.device.fusion import Backend, SlowAttention, slow_attention
from diagnose.facts.device.layout import Convolutions, convolutions
from diagnose.facts.device.precision import doubles
from diagnose.synthetic.reading import facts_of

QKV = "[4,8,2048,64],[4,8,2048,64],[4,8,2048,64]"
EFFICIENT, FLASH = "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_flash_attention"
FMHA, FLASH_2 = "fmha_cutlassF_f16_aligned_64x64_rf_sm80", "flash"
FLASH_3 = "cutlass::device_kernel<flash::FlashAttnFwdSm90>"


def slow(
    op: str, kernel: str, device: str = "A100", shapes: str = QKV, dtype: str = "c10::Half"
) -> list[SlowAttention]:
    types = ",".join([f'"{dtype}"'] * 4)
    facts = facts_of(
        f"3 steps of 20\ndevice {device}\ncpu {op} 0-1 shapes=[{shapes}] types=[{types}]\ngpu {kernel} 2-12 @0.5"
    )
    return list(slow_attention(facts))


def test_memory_efficient_attention_where_the_gpu_has_flash_attention() -> None:
    (found,) = slow(EFFICIENT, FMHA)
    assert (found.backend, found.masked, found.calls, found.ns) == (Backend.EFFICIENT, False, 1, 10_000_000)
    assert (found.queries, found.keys, found.head_dim, found.left) == (2048, 2048, 64, None)


def test_with_a_mask_it_may_have_to_stay() -> None:
    (found,) = slow(EFFICIENT, FMHA, shapes=f"{QKV},[4,8,2048,2048]")
    assert found.masked


@pytest.mark.parametrize(
    ("op", "kernel", "device", "dtype"),
    [
        (EFFICIENT, FMHA, "V100", "c10::Half"),  # has no FlashAttention
        (EFFICIENT, FMHA, "A100", "float"),  # FlashAttention takes 16 bits
        (FLASH, FLASH_2, "A100", "c10::Half"),  # the best that it has
        (FLASH, FLASH_3, "H100", "c10::Half"),
    ],
)
def test_what_has_no_faster_backend(op: str, kernel: str, device: str, dtype: str) -> None:
    assert slow(op, kernel, device, dtype=dtype) == []


def test_flash_attention_2_on_a_hopper_gpu() -> None:
    (found,) = slow(FLASH, FLASH_2, "H100")
    assert (found.backend, found.left) == (Backend.FLASH_2, (1 / 1.1, 1 / 1.5, 1 / 2))
    assert slow(FLASH, FLASH_2, "H100", QKV.replace("2048", "512")) == []  # too short for it


WGRAD = '"void cudnn::cnn::wgrad_alg0_engine<float, 128>(int)"'


def found(more: str = "") -> Convolutions:
    """20 ms in a kernel of a known size, 10 ms in one for any size, which a convolution's op runs; 5 ms in none."""
    facts = facts_of(f"""
        4 steps of 100
        device A100
        cpu  aten::cudnn_convolution 0-1 | aten::convolution_backward 2-3 | aten::add 4-5 | sync 6-99
        gpu  bf16_gemm 1-21 @0.5 | {WGRAD} 21-31 @2.5 | pointwise 31-36 @4.5
        {more}
    """)
    return convolutions(facts)


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


DOUBLE = 'shapes=[[4,4],[4,4]] types=["double","double"]'
FLOAT = 'shapes=[[4,4],[4,4]] types=["float","float"]'
MS = 1_000_000


def test_on_the_device_the_work_of_ops_with_double_inputs_counts() -> None:
    facts = facts_of(f"""
        4 steps of 100
        cpu  aten::linear 1-5 {DOUBLE} | aten::mm 6-7 {FLOAT} | device_sync 8-99
        cpu  aten::addmm 2-4 {DOUBLE}
        gpu  sgemm 10-40 @3 | sgemm 40-90 @6.5
    """)
    found = doubles(facts)
    assert (found.ns, found.longest, found.on_cpu) == (30 * MS, "aten::linear", False)
    assert len(found.ids) == len(found.work_ids) == 4
    assert set(facts.rank.spans["name"].iloc[found.ids]) == {"aten::linear"}  # none inside another


def test_on_the_cpu_the_ops_themselves_count() -> None:
    found = doubles(
        facts_of(
            f"4 steps of 100\n2 threads, 2 cores\ncpu  aten::mm 1-5 {DOUBLE} | aten::add 6-16 {DOUBLE} | aten::mm 20-60"
        )
    )
    assert (found.ns, found.longest, found.on_cpu) == (14 * MS, "aten::add", True)


def test_numbers_of_python_are_no_tensors_in_double_precision() -> None:
    number = 'shapes=[[4,4],[]] types=["float","double"]'
    assert doubles(facts_of(f"4 steps of 100\ncpu  aten::mul 1-5 {number}\ngpu  pointwise 10-40 @3")).ns == 0


def test_nothing_is_double_where_types_say_so_and_nothing_is_known_where_they_are_not_recorded() -> None:
    assert doubles(facts_of(f"4 steps of 100\ncpu  aten::mm 1-5 {FLOAT}\ngpu  sgemm 10-40 @3")).ns == 0
    with pytest.raises(Missing, match="shapes"):
        doubles(facts_of("4 steps of 100\ncpu  aten::mm 1-5\ngpu  sgemm 10-40 @3"))
