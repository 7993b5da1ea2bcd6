"""What is moved without being changed: recorded inputs, layout conversions, copies and casts."""

from typing import Any

import numpy as np
import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.core.inputs import Tensor, recorded_inputs
from diagnose.facts.device.layout import copy_churn, layout_conversions
from tests.drawing import Drawing

TRANSPOSE = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(cudnn::ops::nchw2nhwc_params_t<float>)"
CONV = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4"
ATEN = "void at::native::"
COPY = (
    f"{ATEN}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda()>>(int)"
)
CAST = f"{ATEN}vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
CAT = f"{ATEN}(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(char*)"
OLD_COPY = f"{ATEN}unrolled_elementwise_kernel<at::native::copy_device_to_device(at::TensorIterator&, bool)>(int)"


def shaped(shapes: list[Any], *dtypes: str) -> dict[str, Any]:
    return {"Input Dims": shapes, "Input type": list(dtypes)}


def inputs_of(shapes: Any, dtypes: Any) -> tuple[tuple[Tensor, ...], ...]:
    draw = Drawing().op("aten::x", 0, 10, **{"Input Dims": shapes, "Input type": dtypes})
    position, inputs = recorded_inputs(draw.facts(), np.array([0]))
    return inputs[position[0]] if position[0] >= 0 else ((Tensor((), "none"),),)


def test_inputs_are_tensors_lists_of_them_and_numbers() -> None:
    half, whole = Tensor((2, 3), "c10::BFloat16"), Tensor((), "double")
    assert inputs_of([[2, 3], [], []], ["c10::BFloat16", "double", "Scalar"]) == ((half,), (whole,), ())
    assert half.elements == 6
    assert half.bytes == 12
    assert whole.bytes == 8
    listed = inputs_of([[[2, 3], [4]], []], ["TensorList", "Scalar"])
    assert listed == ((Tensor((2, 3), ""), Tensor((4,), "")), ())
    assert listed[0][0].bytes is None
    assert inputs_of([[8], []], None) == ((Tensor((8,), ""),), ())


@pytest.mark.parametrize(
    "shapes", [[[-1, 2]], [["2"]], [[2.5]], [[[2, "x"]]], [[1] * 65], [[2**40, 2**40]], ["text"], [None], [True]]
)
def test_sizes_that_cannot_be_are_no_tensors(shapes: list[Any]) -> None:
    assert inputs_of(shapes, ["float"]) == ((),)


def test_indented_shapes_are_read() -> None:
    text = Drawing().op("aten::x", 0, 10, **shaped([[888, 2880], []], "float", "Scalar")).text()
    draw = Drawing()
    draw.text = lambda: text.replace("[[888, 2880], []]", "[\n  [\n    888,\n 2880\n ],\n []\n]")  # type: ignore[method-assign]
    position, inputs = recorded_inputs(draw.facts(), np.array([0]))
    assert inputs[position[0]] == ((Tensor((888, 2880), "float"),), ())


def test_what_was_not_recorded_has_no_inputs() -> None:
    facts = Drawing().op("aten::x", 0, 10).call("cudaMalloc", 20, 30).facts()
    assert recorded_inputs(facts, np.array([0, 1, -1]))[0].tolist() == [-1, -1, -1]
    assert recorded_inputs(Drawing().work("k", (0, 1)).facts(), np.array([-1])) == (np.array([-1]), [])


def test_conversions_around_convolutions() -> None:
    draw = Drawing()
    for number in range(3):
        at = 100 * number
        draw.step(number, at, at + 100).op("aten::conv2d", at, at + 30).op("aten::cudnn_convolution", at + 1, at + 29)
        draw.launch(TRANSPOSE, (at + 2, at + 3), (at + 10, at + 14))
        draw.launch(TRANSPOSE, (at + 4, at + 5), (at + 14, at + 20))
        draw.launch(CONV, (at + 6, at + 7), (at + 20, at + 60))
        draw.launch("SubTensorOpWithScalar1d", (at + 8, at + 9), (at + 60, at + 63))
        draw.op("aten::my_permute", at + 40, at + 50)
        draw.launch("transpose_kernel", (at + 41, at + 42), (at + 70, at + 71))
    facts = draw.facts()
    around, other = layout_conversions(facts)
    assert (around.asked_by, around.op, around.convolution) == ("aten::conv2d", "aten::cudnn_convolution", True)
    assert (around.calls, around.ns) == (2, 10_000)
    assert set(facts.rank.spans["name"][around.ids]) == {TRANSPOSE}
    assert len(around.ids) == 6  # of the whole recording, also of the first step, which no number is of
    assert (other.op, other.convolution, other.calls, other.ns) == ("aten::my_permute", False, 1, 1_000)


def test_conversions_whose_op_is_unknown() -> None:
    (found,) = layout_conversions(Drawing().work("batched_transpose_32x32_half", (0, 5)).facts())
    assert (found.asked_by, found.op, found.convolution, found.ns) == ("", "", False, 5_000)


def test_without_device_work_nothing_is_known() -> None:
    facts = Drawing().op("aten::copy_", 0, 10).facts()
    for fact in (layout_conversions, copy_churn):
        with pytest.raises(Missing, match="device work"):
            fact(facts)


def test_copies_by_asking_op_and_casts_apart() -> None:
    bf16 = "c10::BFloat16"
    draw = Drawing()
    draw.op("aten::contiguous", 0, 10).op("aten::copy_", 1, 9, **shaped([[4, 8], [4, 8], []], bf16, bf16, "Scalar"))
    draw.launch(COPY, (2, 3), (10, 30))
    draw.op("aten::to", 20, 30).op("aten::copy_", 21, 29, **shaped([[4, 8], [4, 8], []], "float", bf16, "Scalar"))
    draw.launch(COPY, (22, 23), (30, 37))
    draw.op("aten::to", 40, 50).op("aten::copy_", 41, 49, **shaped([[2], [2], []], bf16, "float", "Scalar"))
    draw.launch(CAST, (42, 43), (50, 55))
    draw.op("aten::cat", 60, 70, **shaped([[[4, 4], [4, 4]], []], "TensorList", "Scalar"))
    draw.launch(CAT, (62, 63), (70, 73))
    draw.op("aten::clone", 80, 90).op("aten::copy_", 81, 89)
    draw.copy("DtoD (Device -> Device)", (82, 83), (90, 92), 1000)
    draw.copy("HtoD (Pinned -> Device)", (84, 85), (92, 99), 1000)
    draw.op("aten::mm", 100, 110).launch("ampere_sgemm_32x32_sliced1x4_tn", (101, 102), (110, 150))
    rows = [(one.asked_by, one.op, one.cast, one.calls, one.ns, one.bytes) for one in copy_churn(draw.facts())]
    assert rows == [
        ("aten::contiguous", "aten::copy_", False, 1, 20_000, 2 * 32 * 2),
        ("aten::to", "aten::copy_", True, 2, 12_000, 32 * 4 + 32 * 2 + 2 * 2 + 2 * 4),
        ("aten::cat", "aten::cat", False, 1, 3_000, None),
        ("aten::clone", "aten::copy_", False, 1, 2_000, 2 * 1000),
    ]


def test_a_copy_whose_types_nothing_tells() -> None:
    draw = Drawing().op("aten::copy_", 0, 10).launch(OLD_COPY, (1, 2), (5, 8))
    (found,) = copy_churn(draw.facts())
    assert (found.cast, found.bytes) == (None, None)


def test_copying_kernels_of_other_ops_are_torchs_own() -> None:
    draw = Drawing().op("aten::addmm", 0, 10).launch(OLD_COPY, (1, 2), (5, 8))
    draw.op("_cache_ops::reshape_and_cache", 10, 20)
    draw.launch("void vllm::reshape_and_cache_kernel<float>()", (11, 12), (15, 18))
    draw.work("_my_triton_copy_kernel", (20, 24)).work(CAT, (30, 31))
    assert [(one.op, one.ns) for one in copy_churn(draw.facts())] == [("aten::addmm", 3_000), ("", 1_000)]


def test_copies_of_data_parallelism_are_not_the_models() -> None:
    draw = Drawing()
    around = [
        ("cpu_op", "aten::copy_"),
        ("user_annotation", "FullyShardedDataParallel.forward"),
        ("user_annotation", "FullyShardedDataParallel._pre_unshard"),
        ("user_annotation", "FSDP::all_gather_copy_out (layers.0)"),
        ("cpu_op", "fsdp::chunk_cat"),
        ("cpu_op", "c10d::allreduce_"),
        ("cpu_op", "torch.distributed.ddp.reducer::copy_bucket_to_grad"),
    ]
    for k, (category, name) in enumerate(around):
        at = 10 * k
        draw.span(category, name, at, at + 10).op("aten::copy_", at + 1, at + 9)
        draw.launch(COPY, (at + 2, at + 3), (at + 4, at + 8))
    (found,) = copy_churn(draw.facts())
    assert (found.asked_by, found.calls, found.ns) == ("aten::copy_", 2, 8_000)
