"""Fused attention on a slower backend than the GPU has: figures by hand."""

import pytest

from diagnose.facts.device.attention import Backend, SlowAttention, slow_attention
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
