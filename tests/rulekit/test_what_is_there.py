"""Fixes look at what is there: the optimizer's class, the guard that failed, the processor's units."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from diagnose import pipeline
from diagnose.contracts.finding import Level, OutcomeKind, RankedFinding
from diagnose.facts.core.base import Facts
from diagnose.fixes.setting import Safety
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.manifest import FailedGuard, Optimizer
from tests.rules import built_in

TABLE = """
4 steps of 100
2 threads, 4 cores
cpu  aten::embedding_dense_backward 0-30 shapes=[[256,32],[256],[],[],[]] | zero_grad 90-96
cpu  torch::autograd::AccumulateGrad 40-41 shapes=[[200000,32]]
cpu  aten::fill_ 1-29 shapes=[[200000,32],[]] | "Optimizer.step#SGD.step" 50-80
cpu  aten::add_ 51-61 shapes=[[200000,32],[200000,32],[]]
"""


def finding(rule: str, drawing: str, **known: object) -> RankedFinding:
    """What the rule finds first, given more of a manifest."""
    rank = facts_of(drawing).rank
    assert rank.context is not None
    more = msgspec.structs.replace(rank.context.rank, **known)
    facts = Facts(replace(rank, context=replace(rank.context, rank=more)))
    return pipeline.present(facts, [built_in(rule)]).findings[0]


def optimizers(*names: str, momentum: float = 0.0, weight_decay: float | None = 0.0) -> tuple[Optimizer, ...]:
    return tuple(Optimizer(name=name, momentum=momentum, weight_decay=weight_decay) for name in names)


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_plain_optimizers_take_sparse_gradients_as_they_are(name: str) -> None:
    (fix,) = finding("dense_embedding_gradients", TABLE, optimizers=optimizers(name)).fixes
    assert fix.do == f"Ask for sparse gradients of the table: {name} takes them as it is."
    assert fix.after == "Embedding(rows, width, sparse=True)"
    assert fix.safety is Safety.ROUNDING


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (optimizers("SGD", momentum=0.9), "give it to SGD without momentum and weight decay"),
        (optimizers("SGD", weight_decay=0.01), "give it to SGD without momentum and weight decay"),
        (optimizers("AdamW"), "let SparseAdam update it"),
        (optimizers("Adam", "SGD"), "let SparseAdam update it"),
    ],
)
def test_others_move_rows_that_are_not_read(known: tuple[Optimizer, ...], says: str) -> None:
    (fix,) = finding("dense_embedding_gradients", TABLE, optimizers=known).fixes
    assert says in fix.do
    assert fix.safety is Safety.NEEDS_JUDGEMENT


@pytest.mark.parametrize("known", [optimizers("SGD", weight_decay=None), ()])  # Its name is in the trace.
def test_what_is_not_known_of_an_optimizer_is_a_condition(known: tuple[Optimizer, ...]) -> None:
    (fix,) = finding("dense_embedding_gradients", TABLE, optimizers=known).fixes
    assert "if SGD has no momentum and no weight decay" in fix.do
    assert fix.safety is Safety.ROUNDING


def test_giving_the_memory_of_a_dense_gradient_back_is_part_of_the_price() -> None:
    """46 ms: 30 to make the gradient, 10 to update, 6 in zero_grad, which runs no op. All of it is the table's."""
    found = finding("dense_embedding_gradients", TABLE, optimizers=optimizers("SGD"))
    assert found.evidence[0].value == 46_000_000
    with_op = TABLE.replace("zero_grad 90-96", "zero_grad 90-96 | aten::zero_ 91-95")
    assert finding("dense_embedding_gradients", with_op, optimizers=optimizers("SGD")).evidence[0].value == 40_000_000


EAGER = """
4 steps of 100
1 threads, 2 cores
cpu  "TorchDynamo Cache Lookup" 0-0.1 | aten::mul 1-31 shapes=[[1024,1024],[1024,1024]]
cpu  aten::add 31-61 shapes=[[1024,1024],[1024,1024]] | aten::tanh 61-81 shapes=[[1024,1024]]
"""
COUNTER = FailedGuard(
    source="self.seen", said="self.seen == 7", is_size=False, forms=7, file="net.py", line=9, function="forward"
)
SIZE = FailedGuard(
    source="x", said="tensor 'x' size mismatch", is_size=True, forms=1, file="net.py", line=3, function="forward"
)


def test_a_python_number_is_kept_out_of_what_is_compiled_at_its_line() -> None:
    found = finding("compile_fallback", EAGER, failed_guards=(SIZE, COUNTER))
    assert [fix.do for fix in found.fixes] == [
        "Keep `self.seen` out of what is compiled, or make it a tensor: dynamic sizes do not help."
    ]
    assert found.site == Site("net.py", 9, "forward")
    assert found.evidence[1].text == "7 compiled forms do not fit by the guard `self.seen == 7`."


def test_dynamic_sizes_are_for_sizes() -> None:
    found = finding("compile_fallback", EAGER, failed_guards=(SIZE,))
    assert found.fixes[0].trial == "patch:torch.compile(dynamic=True)"
    assert found.site == Site("net.py", 3, "forward")


def test_where_no_guard_is_known_it_is_asked_for_first() -> None:
    first, *_ = finding("compile_fallback", EAGER).fixes
    assert first.trial is None
    assert first.after == "TORCH_LOGS=recompiles python train.py"


HALF = 'aten::mm 0-80 shapes=[[300,300],[300,300]] types=["c10::{0}","c10::{0}"]'
FULL = 'aten::mm 80-82 shapes=[[300,300],[300,300]] types=["float","float"]'


def half(kind: str, flags: str = "", *more: str) -> str:
    said = f", flags {flags}" if flags else ""
    return f"4 steps of 100\n1 threads, 2 cores{said}\ncpu  {' | '.join((HALF.format(kind), *more))}"


@pytest.mark.parametrize(
    ("drawing", "level"),
    [
        (half("BFloat16", "avx2", FULL), Level.HIGH),
        (half("BFloat16", "avx2"), Level.MEDIUM),
        (half("Half", "avx512_bf16"), Level.MEDIUM),  # it has the other type
        (half("BFloat16"), Level.LOW),
    ],
)
def test_a_processor_without_units_is_told_by_its_rate_else_by_its_flags(drawing: str, level: Level) -> None:
    assert finding("half_precision_on_cpu", drawing).confidence.level is level


def test_the_line_of_sixteen_bits_is_that_of_the_forward_pass() -> None:
    """The backward pass takes three times as long, at the line of `loss.backward()`."""
    node = '"autograd::engine::evaluate_function: MmBackward0" 20-80 sequence=0 "Fwd thread id"=1'
    forward = HALF.format("BFloat16").replace("0-80", "1-19") + " sequence=0"
    lines = '"train.py(3): forward" 0-20 | "train.py(9): main" 20-90'
    ops = f"{forward} | {node} | {HALF.format('BFloat16').replace('0-80', '21-79')} | {lines}"
    site = finding("half_precision_on_cpu", f"4 steps of 100\n1 threads, 2 cores, flags avx2\ncpu  {ops}").site
    assert site == Site("train.py", 3, "forward")


@pytest.mark.parametrize(
    ("dtypes", "says"),
    [({"float32": 8}, "do not cast tensors to 16 bits"), ({"bfloat16": 8}, "keep model and data in float32")],
)
def test_where_the_weights_are_fp32_the_cast_is_what_goes(dtypes: dict[str, int], says: str) -> None:
    known = tuple(msgspec.structs.replace(one, dtypes=dtypes) for one in optimizers("SGD"))
    (fix,) = finding("half_precision_on_cpu", half("BFloat16", "avx2"), optimizers=known).fixes
    assert says in fix.do


def test_sixteen_bits_at_the_rate_of_fp32_lose_nothing() -> None:
    """54 million operations in 80 ms, and 12.8 million in 19 ms in fp32."""
    facts = facts_of(half("BFloat16", "avx2", FULL.replace("80-82", "80-99").replace("[300,300]", "[71,300]", 1)))
    (ended,) = pipeline.present(facts, [built_in("half_precision_on_cpu")]).outcomes
    assert ended.outcome is OutcomeKind.CLEAN
