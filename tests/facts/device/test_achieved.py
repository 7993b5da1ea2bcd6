"""Achieved FLOP/s and MFU: values of synthetic traces by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.device.lost_time import TypeFlops, achieved_flops
from diagnose.facts.device.roofline import MatmulOps, matmul_ops, op_roofline, reached_share
from diagnose.source import ranks
from diagnose.synthetic.reading import facts_of
from diagnose.trace import hardware
from diagnose.trace.costs import DTYPES

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
    assert found.why_no_mfu.startswith("peak rates of the GPU")
    assert {type_.peak_flops_per_s for type_ in found.types} == {None}


def test_without_the_type_of_most_flops_there_is_no_mfu() -> None:
    text = f'3 steps of 10\ncpu aten::mm 0-1 {LARGE} types=["float","float"]\ngpu my_gemm_kernel 1-9 @0.5'
    found = achieved_flops(facts_of(text))
    assert found.types == (TypeFlops("", FLOPS, None),)
    assert (found.mfu, found.why_no_mfu) == (None, "the data type of most FLOPs")


def test_attention_counts_as_the_most_that_it_can_be() -> None:
    shapes = "shapes=[[1,8,1024,64],[1,8,1024,64],[1,8,1024,64]] types=" + '["c10::BFloat16"]'
    text = f"3 steps of 10\ncpu aten::_scaled_dot_product_flash_attention 0-1 {shapes}\ngpu flash 1-9 @0.5"
    found = achieved_flops(facts_of(text))
    assert found.flops == 2 * 8 * 1024 * 1024 * 2 * 64
    assert found.at_most_share == 1.0


def test_without_shapes_there_are_no_flops() -> None:
    with pytest.raises(Missing, match="shapes"):
        achieved_flops(facts_of("3 steps of 10\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"))


def told(codes: np.ndarray[Any, np.dtype[np.int8]]) -> list[str]:
    return [DTYPES[code] if code >= 0 else "" for code in codes.tolist()]


def names(table: MatmulOps) -> list[str]:
    return [table.names[name] if name >= 0 else "" for name in table.name.tolist()]


def test_a_row_is_the_innermost_op_with_a_cost_and_all_its_kernels() -> None:
    facts = facts_of("""
        3 steps of 10
        cpu  aten::linear 0-2 shapes=[[6,5],[4,5]] types=["float","float"]
        cpu  aten::addmm 0.5-1.5 shapes=[[4],[6,5],[5,4]] types=["float","float","float"]
        gpu  "void splitKreduce_kernel<32>()" 5-6 @0.7 | tf32_gemm 3-5 @0.6 blocks=8 | pointwise 6-9 @1.8
    """)
    table = matmul_ops(facts)
    assert names(table) == ["aten::addmm"] * 3
    # 2 * 6 * 4 * 5 operations; 4 + 30 + 20 + 24 elements
    assert table.flops.tolist() == [240] * 3
    assert table.bytes.tolist() == [4 * 78] * 3
    assert table.dims.tolist() == [[6, 4, 5]] * 3
    assert table.exact.all()
    assert table.dur_ns.tolist() == [3_000_000] * 3
    # Of the longer kernel:
    assert (told(table.dtype), told(table.math_dtype)) == (["fp32"] * 3, ["tf32"] * 3)
    assert (table.tensor_cores.tolist(), table.blocks.tolist()) == ([1] * 3, [8] * 3)
    assert table.in_steps.tolist() == [False, True, True]
    assert table.row.tolist() == [0, 0, 1, 1, 2, 2]
    kernels = facts.rank.spans["name"].iloc[table.work].astype(str)
    assert ["splitK" in name for name in kernels] == [False, True] * 3


def test_an_op_without_a_cost_takes_that_of_the_op_around_it() -> None:
    facts = facts_of(f"""
        1 step of 10
        cpu  aten::convolution_backward 0-2 shapes=[[1,8,6,6],[1,3,8,8],[8,3,3,3],[]] {BF16}
        cpu  aten::inner 0.5-1.5 | my::op 3-4
        gpu  conv 3-4 @0.6 | sgemm 4-5 @0.7 | sgemm 5-7 @3.1
    """)
    table = matmul_ops(facts)
    assert names(table) == ["aten::convolution_backward", "my::op"]
    assert table.flops.tolist() == [2 * 2 * 36 * 216, -1]
    assert table.exact.tolist() == [False, False]
    assert (table.bytes[1], table.dims[1].tolist()) == (-1, [-1, -1, -1])
    assert table.dur_ns.tolist() == [2_000_000, 2_000_000]


def test_what_an_op_inside_multiplies_is_counted_once() -> None:
    facts = facts_of(f"""
        1 step of 10
        cpu  aten::convolution_backward 0-4 shapes=[[1,8,6,6],[1,3,8,8],[8,3,3,3],[]] {BF16}
        cpu  aten::mm 1-2 shapes=[[8,36],[36,27]] {BF16}
        gpu  "void at::native::im2col_kernel<float>()" 3-4 @0.5 | sgemm 4-5 @1.1
    """)
    table = matmul_ops(facts)
    assert names(table) == ["aten::convolution_backward", "aten::mm"]
    assert table.flops.tolist() == [-1, 2 * 8 * 36 * 27]


def test_the_forward_of_a_convolution_is_told_by_its_backward() -> None:
    facts = facts_of(f"""
        1 step of 20
        cpu  aten::cudnn_convolution 0-1 shapes=[[1,3,8,8],[8,3,3,3]] {BF16}
        cpu  aten::cudnn_convolution 1-2 shapes=[[1,4,8,8],[8,4,3,3]] {BF16}
        cpu  aten::cudnn_convolution 2-3 shapes=[[1,5,8,8],[8,5,3,3]] {BF16}
        cpu autograd  aten::convolution_backward 4-5 shapes=[[1,8,6,6],[1,3,8,8],[8,3,3,3]] {BF16}
        cpu autograd  aten::convolution_backward 5-6 shapes=[[1,8,6,6],[1,4,8,8],[8,4,3,3]] {BF16}
        cpu autograd  aten::convolution_backward 6-7 shapes=[[1,8,3,3],[1,4,8,8],[8,4,3,3]] {BF16}
        gpu  conv 8-9 @0.5 | conv 9-10 @1.5 | conv 10-11 @2.5
        gpu  conv 11-12 @4.5 from autograd | conv 12-13 @5.5 from autograd | conv 13-14 @6.5 from autograd
    """)
    table = matmul_ops(facts)
    # Of the second, backward calls differ in what it put out; of the third there is none.
    assert table.flops[:3].tolist() == [2 * 36 * 216, -1, -1]
    assert table.flops[3:].tolist() == [4 * 36 * 216, 4 * 36 * 288, 4 * 9 * 288]


def test_without_ops_or_shapes_names_still_tell() -> None:
    facts = facts_of(
        "3 steps of 10\ncpu aten::mm 0-1\ngpu sgemm 1-2 @0.5 | bf16_gemm 2-4 | bf16_gemm 4-6 | pointwise 6-9"
    )
    table = matmul_ops(facts)
    assert names(table) == ["aten::mm", "", ""] * 3
    assert told(table.math_dtype) == ["fp32", "bf16", "bf16"] * 3
    assert table.tensor_cores.tolist() == [0, 1, 1] * 3
    assert (set(table.flops.tolist()), set(table.bytes.tolist()), set(told(table.dtype))) == ({-1}, {-1}, {""})
    with pytest.raises(Missing, match="record_shapes"):
        op_roofline(facts)


def test_without_matmuls() -> None:
    table = matmul_ops(facts_of("1 step of 10\ngpu pointwise 1-2"))
    assert (len(table.op), table.names, table.dims.shape) == (0, (), (0, 3))
    with pytest.raises(Missing, match="device work"):
        matmul_ops(facts_of("1 step of 10\ncpu aten::mm 1-2"))


def mm(sizes: str, types: str = BF16, kernel: str = "bf16_gemm 2-4", device: str = "H100") -> Facts:
    return facts_of(f"1 step of 10\ndevice {device}\ncpu aten::mm 0-1 shapes={sizes} {types}\ngpu {kernel} @0.5")


def test_a_large_product_is_bound_by_compute() -> None:
    roofline = op_roofline(mm("[[8192,8192],[8192,8192]]"))
    flops = 2 * 8192**3
    # H100: 794.5 of 989 TFLOP/s are reached in 16 bits, 1403 in 8; tf32 like 16 bits, of 495.
    assert roofline.floor_ns("bf16") == pytest.approx([flops / 794.5e3])
    assert roofline.floor_ns("fp8") == pytest.approx([flops / 1403e3])
    assert roofline.floor_ns("tf32") == pytest.approx([flops / (495e3 * 794.5 / 989)])
    assert roofline.floor_ns("fp32") == pytest.approx([flops / (67e3 * 0.95)])
    assert np.isnan(roofline.floor_ns("fp64")).all()
    assert roofline.achieved_share == pytest.approx([flops / 794.5e3 / 2_000_000])


def test_a_thin_product_is_bound_by_memory_and_a_small_one_by_the_shortest_kernel() -> None:
    thin = op_roofline(mm("[[1,16384],[16384,16384]]"))
    elements = 16384**2 + 2 * 16384
    # 3350 GB/s, of which 90 % are reached; with fp8 tensors half the bytes, with tf32 tensors twice.
    assert thin.floor_ns("bf16") == pytest.approx([2 * elements / (3350 * 0.9)])
    assert thin.floor_ns("fp8") == pytest.approx([elements / (3350 * 0.9)])
    assert thin.floor_ns("tf32") == pytest.approx([4 * elements / (3350 * 0.9)])
    small = op_roofline(mm("[[64,64],[64,64]]"))
    assert small.floor_ns("bf16").tolist() == [2000.0]
    assert small.achieved_share == pytest.approx([0.001])


def test_what_a_kernel_multiplies_in() -> None:
    sizes = "[[8192,8192],[8192,8192]]"
    of_inputs = op_roofline(mm(sizes, kernel="attn_fwd 2-4"))
    assert (told(of_inputs.math_dtype), told(of_inputs.table.math_dtype)) == (["bf16"], [""])
    assert of_inputs.achieved_share == pytest.approx([2 * 8192**3 / 794.5e3 / 2_000_000])
    # Of fp32 inputs that is open: fp32 or tf32. A V100 has no tf32, so a kernel that says so is not judged.
    assert np.isnan(op_roofline(mm(sizes, 'types=["float","float"]', "attn_fwd 2-4")).achieved_share).all()
    assert np.isnan(op_roofline(mm(sizes, 'types=["float","float"]', "tf32_gemm 2-4", "V100")).achieved_share).all()


def test_types_that_were_not_recorded_leave_compute() -> None:
    roofline = op_roofline(mm("[[1,16384],[16384,16384]]", types=""))
    assert roofline.table.bytes.tolist() == [-1]
    assert roofline.floor_ns("bf16").tolist() == [2000.0]


def test_what_is_reached() -> None:
    assert reached_share(hardware.A100_80, "bf16") == pytest.approx(0.869, abs=5e-4)
    assert reached_share(hardware.A100_PCIE_80, "bf16") == pytest.approx(0.811, abs=5e-4)
    assert reached_share(hardware.GH200_96, "fp16") == pytest.approx(0.838, abs=5e-4)
    assert reached_share(hardware.GB200, "fp8") == pytest.approx(0.723, abs=5e-4)
    assert (reached_share(hardware.T4, "fp16"), reached_share(hardware.L4, "fp8")) == (0.78, 0.70)


def test_an_unknown_device() -> None:
    with pytest.raises(Missing, match="peak rates"):
        op_roofline(mm("[[64,64],[64,64]]", device="1080"))


@pytest.mark.parametrize(
    ("trace", "op", "convolutions", "batch", "multiplications"),
    [
        # torchvision's models page: 1.81 and 4.09 billion multiplications for an image, of which 0.5 and 2 million in
        # the linear layer.
        ("tracelens/mi300_resnet18.json.gz", "aten::miopen_convolution", 20, 512, 1.8135e9),
        ("tensorboard/resnet50_autograd_0_workers.json.gz", "aten::cudnn_convolution", 53, 32, 4.0871e9),
    ],
)
def test_convolutions_of_a_resnet(
    corpus: Path, trace: str, op: str, convolutions: int, batch: int, multiplications: float
) -> None:
    table = matmul_ops(Facts(ranks.read(corpus / "kineto" / trace)))
    forward = np.array(names(table)) == op
    passes, rest = divmod(int(forward.sum()), convolutions)
    assert rest == 0
    assert table.flops[forward].min() > 0
    assert table.flops[forward].sum() / (2 * batch * passes) == pytest.approx(multiplications, rel=1e-4)
    assert (table.flops[table.in_steps] >= 0).all()


def test_nothing_is_faster_than_its_floor(corpus: Path) -> None:
    for trace in ("b200_eager", "h100_bert_small", "h100_qwen05b", "mi300_resnet18", "mi300_resnet_act_checkpoint"):
        share = op_roofline(Facts(ranks.read(corpus / f"kineto/tracelens/{trace}.json.gz"))).achieved_share
        assert 0 < np.nanmin(share) <= np.nanmax(share) < 1
