"""What the optimizer costs: its steps, how they are implemented, the zeroing of gradients."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.work import work_table
from diagnose.facts.optimizer.optimizer import (
    Implementation,
    OptimizerSteps,
    for_parameters,
    gradient_zeroing,
    optimizer_steps,
)
from diagnose.pipeline import present
from diagnose.source import ranks
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Optimizer
from tests.drawing import MAIN, Drawing
from tests.rules import built_in

ATEN = "void at::native::"
ADD = f"{ATEN}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
FILL = f"{ATEN}vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)"
FOREACH = (
    f"{ATEN}(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float> >(int)"
)
FUSED = f"{ATEN}(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4> >(int)"
WEIGHT, BIAS = [16, 4], [16]


def a_step() -> Drawing:
    return Drawing().step(0, 0, 300)


def stepping(draw: Drawing, start: float, end: float, optimizer: str = "AdamW") -> Drawing:
    return draw.span("user_annotation", f"Optimizer.step#{optimizer}.step", start, end)


def update(draw: Drawing, name: str, at: float, shapes: Any, kernel: str = ADD, run: float = 2) -> Drawing:
    """An op of 5 us with a kernel that runs `run` us, 20 us later."""
    types = ["TensorList" if name.startswith(("aten::_foreach_", "aten::_fused_")) else "float"]
    draw.op(name, at, at + 5, **({} if shapes is None else {"Input Dims": shapes, "Input type": types}))
    return draw.launch(kernel, (at + 1, at + 2), (at + 20, at + 20 + run))


def single(draw: Drawing, at: float, size: list[int]) -> None:
    """What AdamW with foreach=False does to a parameter, cut short."""
    for k, name in enumerate(("aten::mul_", "aten::lerp_", "aten::addcdiv_")):
        update(draw, name, at + 5 * k, [size])


def test_one_kernel_after_the_other_for_each_parameter() -> None:
    draw = Drawing()
    for number in range(3):
        at = 200 * number
        draw.step(number, at, at + 200)
        stepping(draw, at + 10, at + 60)
        single(draw, at + 10, WEIGHT)
        single(draw, at + 30, BIAS)
        update(draw, "aten::relu", at + 70, [WEIGHT])
    facts = draw.facts()
    (found,) = optimizer_steps(facts)
    assert (found.optimizer, found.implementation) == ("AdamW", Implementation.SINGLE_TENSOR)
    assert (found.total_calls, found.launches, found.device_ns, found.host_ns) == (2, 6, 12_000, 50_000)
    assert found.elements == 64 + 16
    assert (len(found.ids), len(found.op_ids), len(found.work_ids)) == (3, 18, 18)  # of the whole recording
    assert set(facts.rank.spans["name"][found.op_ids]) == {"aten::mul_", "aten::lerp_", "aten::addcdiv_"}


def only(draw: Drawing) -> OptimizerSteps:
    (found,) = optimizer_steps(draw.facts())
    return found


def test_ops_within_ops_count_once() -> None:
    draw = stepping(a_step(), 0, 100, "SGD")
    draw.op("aten::mul_", 10, 20, **{"Input Dims": [WEIGHT, []], "Input type": ["float", "Scalar"]})
    found = only(update(draw, "aten::mul_", 12, [WEIGHT]))
    assert (found.elements, len(found.op_ids), found.launches) == (64, 1, 1)


def test_one_kernel_for_each_operation() -> None:
    draw = stepping(a_step(), 0, 100)
    for at, name in enumerate(("mul", "mul", "addcdiv"), 1):
        update(draw, f"aten::_foreach_{name}_", 10 * at, [[WEIGHT, BIAS]], FOREACH)
    found = only(draw)
    assert (found.implementation, found.launches, found.elements) == (Implementation.FOREACH, 3, 64 + 16)


def test_sizes_that_torch_looks_up_one_by_one() -> None:
    draw = stepping(a_step(), 0, 100, "SGD")
    update(draw, "aten::_foreach_add_", 10, [[]], FOREACH)  # over 30 tensors
    for k, size in enumerate((WEIGHT, BIAS)):
        draw.op("aten::result_type", 12.5 + k, 13 + k, **{"Input Dims": [size, []], "Input type": ["float", "Scalar"]})
    assert only(draw).elements == 64 + 16


def test_one_kernel_for_all() -> None:
    draw = stepping(a_step(), 0, 100)
    update(draw, "aten::_foreach_add_", 10, [[[], []]], FOREACH, run=1)  # counts the steps
    found = only(update(draw, "aten::_fused_adamw_", 30, [[WEIGHT, BIAS]], FUSED, run=9))
    assert (found.implementation, found.launches, found.elements) == (Implementation.FUSED, 2, 64 + 16)
    apex = stepping(a_step(), 0, 100, "FusedAdam")
    apex.launch("multi_tensor_apply_kernel<AdamFunctor<float>>", (1, 2), (3, 9))
    assert only(apex).implementation is Implementation.FUSED


def test_a_compiled_step_and_one_that_launches_nothing() -> None:
    draw = stepping(a_step(), 0, 100).op("Torch-Compiled Region", 5, 50).launch("triton_for_fused_0", (6, 7), (8, 20))
    stepping(draw, 200, 210, "CPUAdam")
    compiled, other = optimizer_steps(draw.facts())
    assert (compiled.implementation, compiled.elements) == (Implementation.COMPILED, None)
    assert (other.optimizer, other.implementation, other.launches) == ("CPUAdam", Implementation.OTHER, 0)


def test_of_a_step_with_a_closure_only_the_update_counts() -> None:
    draw = stepping(a_step(), 0, 100, "Adam").span("user_annotation", "Optimizer.zero_grad#Adam.zero_grad", 1, 3)
    update(draw, "aten::relu", 5, [WEIGHT])
    draw.op("aten::linear", 10, 12, **{"Sequence number": 7, "Fwd thread id": 0})
    draw.op("LinearBackward0", 20, 50, tid=MAIN + 1, **{"Sequence number": 7, "Fwd thread id": 1})
    found = only(update(draw, "aten::addcdiv_", 60, [WEIGHT]))
    assert (found.launches, found.host_ns, found.elements, len(found.op_ids)) == (1, 50_000, 64, 1)


def test_of_nested_steps_the_innermost_counts() -> None:
    draw = stepping(stepping(a_step(), 0, 100, "Wrapper"), 10, 90, "SGD")
    found = only(update(draw, "aten::add_", 20, [WEIGHT]))
    assert (found.optimizer, found.host_ns) == ("SGD", 80_000)


def test_several_optimizers_by_device_time() -> None:
    draw = stepping(stepping(a_step(), 0, 40, "AdamW"), 50, 90, "Muon")
    update(draw, "aten::_fused_adamw_", 5, [[BIAS]], FUSED, run=3)
    update(draw, "aten::add_", 55, [WEIGHT], run=7)
    assert [(one.optimizer, one.elements) for one in optimizer_steps(draw.facts())] == [("Muon", 64), ("AdamW", 16)]


def accumulating(draw: Drawing, at: float) -> Drawing:
    for k, size in enumerate((WEIGHT, BIAS, BIAS)):
        told = {"Input Dims": [size], "Input type": ["float"]}
        draw.op("torch::autograd::AccumulateGrad", at + k, at + k + 0.5, **told)
    return draw


def test_gradients_tell_how_many_elements_there_are() -> None:
    """One weight and two equal biases: each got one gradient, because there is one weight's for one update."""
    draw = stepping(accumulating(a_step(), 0), 20, 60)
    assert only(update(draw, "aten::_foreach_addcdiv_", 30, [[]], FOREACH)).elements == 64 + 2 * 16


@pytest.mark.parametrize("more", ["micro-batch", "FSDP::post_backward", "Optimizer.step#Muon.step"])
def test_gradients_do_not_always_tell(more: str) -> None:
    draw = stepping(accumulating(a_step(), 0), 20, 60)
    update(draw, "aten::_foreach_addcdiv_", 30, [[]], FOREACH)
    if more == "micro-batch":
        accumulating(draw, 10)
    else:
        draw.span("user_annotation", more, 100, 101)
    assert {one.elements for one in optimizer_steps(draw.facts())} == {None}


def test_ops_that_do_not_tell_the_parameters() -> None:
    assert only(update(stepping(a_step(), 0, 100), "aten::add_", 10, None)).elements is None


def test_steps_that_were_not_recorded() -> None:
    draw = update(a_step(), "aten::add_", 10, [WEIGHT])
    with pytest.raises(Missing, match="optimizer steps"):
        optimizer_steps(draw.facts())
    with pytest.raises(Missing, match="zero_grad"):
        gradient_zeroing(draw.facts())
    unlaunched = stepping(a_step(), 0, 100).work(ADD, (10, 20)).facts()
    for fact in (optimizer_steps, gradient_zeroing):
        with pytest.raises(Missing, match="launches"):
            fact(unlaunched)
        with pytest.raises(Missing, match="device work"):
            fact(stepping(a_step(), 0, 100).op("aten::add_", 1, 2).facts())


def test_gradients_filled_with_zeros() -> None:
    draw = Drawing()
    for number in range(3):
        at = 200 * number
        draw.step(number, at, at + 200).span("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", at + 10, at + 30)
        update(draw, "aten::zero_", at + 11, [WEIGHT], FILL)
        draw.op("aten::zero_", at + 20, at + 25, **{"Input Dims": [BIAS], "Input type": ["c10::BFloat16"]})
        draw.launch("Memset (Device)", (at + 21, at + 22), (at + 40, at + 43), cat="gpu_memset", api="cudaMemsetAsync")
        update(draw, "aten::zero_", at + 100, [WEIGHT], FILL)  # not a gradient
    found = gradient_zeroing(draw.facts())
    assert (found.launches, found.device_ns, found.host_ns) == (2, 5_000, 20_000)
    assert (len(found.ids), len(found.work_ids)) == (3, 6)


def test_gradients_set_to_none() -> None:
    draw = update(a_step(), "aten::relu", 50, [WEIGHT])
    found = gradient_zeroing(draw.span("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 60, 65).facts())
    assert (len(found.ids), found.launches, found.device_ns, found.host_ns) == (1, 0, 0, 5_000)


def test_a_modules_zero_grad_is_seen_in_stacks() -> None:
    draw = Drawing().frame("torch/nn/modules/module.py(2900): zero_grad", 10, 40)
    assert gradient_zeroing(update(draw, "aten::zero_", 11, None, FILL).facts()).device_ns == 2_000


def test_work_for_parameters() -> None:
    draw = stepping(a_step(), 0, 40).span("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 50, 90)
    update(draw, "aten::add_", 5, None)
    update(draw, "aten::zero_", 55, None)
    update(draw, "aten::relu", 100, None)
    draw.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 110, 130)
    update(draw, "aten::add_", 115, None)
    facts = draw.facts()
    assert for_parameters(facts).tolist() == [True, True, False, True]
    assert work_table(facts).start_ns.tolist() == [25_000, 75_000, 120_000, 135_000]


@pytest.mark.parametrize(
    ("name", "elements", "implementation", "launches"),
    [
        ("tensorboard/resnet50_autograd_0_workers", 25_557_032, Implementation.SINGLE_TENSOR, 3 * 161),
        ("tracelens/mi300_resnet18", 11_689_512, Implementation.FOREACH, 1),
        ("tracelens/mi300_resnet_act_checkpoint", 11_689_512, Implementation.FOREACH, 1),
        ("hta/resnet_v100_5_steps", None, Implementation.FOREACH, 9),
        ("hta/mi250_rocm62", 128 * 128 + 128, Implementation.FOREACH, 1),
    ],
)
def test_real_optimizers(
    corpus: Path, name: str, elements: int | None, implementation: Implementation, launches: int
) -> None:
    """ResNet-50 has 25,557,032 parameters in 161 tensors, ResNet-18 has 11,689,512: by torchvision's model cards."""
    (found,) = optimizer_steps(Facts(ranks.read(corpus / "kineto" / f"{name}.json.gz")))
    assert (found.optimizer, found.elements, found.implementation) == ("SGD", elements, implementation)
    assert found.launches == launches


@pytest.mark.parametrize(
    ("groups", "distinct", "saves_ms"), [(100, 10, 22.95), (100, 100, 0), (4, 2, 0), (100, None, 0)]
)
def test_groups_with_equal_settings(groups: int, distinct: int | None, saves_ms: float) -> None:
    """Of 30 ms 90 % goes by groups that are alike, of which 15 % stays."""
    drawing = "aten::mm 0-60 | Optimizer.step#AdamW.step 65-95 | aten::_fused_adamw_ 66-94"
    rank = facts_of(f"4 steps of 100\n1 threads, 2 cores\ncpu  {drawing}").rank
    assert rank.context is not None
    made = Optimizer(name="AdamW", fused=True, groups=groups, distinct_groups=distinct)
    known = msgspec.structs.replace(rank.context.rank, optimizers=(made,))
    facts = Facts(replace(rank, context=replace(rank.context, rank=known)))
    replayed_ns = [one.saving.replayed_ns for one in present(facts, [built_in("unfused_optimizer")]).findings]
    assert [likely for _, likely, _ in filter(None, replayed_ns)] == pytest.approx(
        [1e8 - saves_ms * 1e6] * (saves_ms > 0)
    )
