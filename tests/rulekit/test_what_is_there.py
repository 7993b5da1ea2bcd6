"""What is said looks at what is there: the optimizer's class, the guard that failed, the processor's units."""

from dataclasses import replace

import msgspec
import pytest

from diagnose import pipeline
from diagnose.contracts.finding import OutcomeKind, RankedFinding
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


@pytest.mark.parametrize(
    ("kind", "flags", "says"),
    [
        ("BFloat16", ", flags avx2 avx512_fp16", "products in bf16 take 80.0 ms a step on the CPU"),
        ("Half", ", flags avx2 avx512_bf16", "products in fp16 take 80.0 ms a step on the CPU"),
        ("BFloat16", ", flags avx2 amx_bf16", "the training computes on the CPU"),
        ("BFloat16", "", "the training computes on the CPU"),  # its flags are not known
    ],
)
def test_sixteen_bits_that_a_processor_has_no_units_for_are_told(kind: str, flags: str, says: str) -> None:
    op = f'aten::mm 0-80 shapes=[[300,300],[300,300]] types=["c10::{kind}","c10::{kind}"]'
    facts = facts_of(f"4 steps of 100\n1 threads, 2 cores{flags}\ncpu  {op}")
    (ended,) = pipeline.present(facts, [built_in("no_mixed_precision")]).outcomes
    assert ended.outcome is OutcomeKind.NOT_APPLICABLE
    assert ended.why.startswith(says)
