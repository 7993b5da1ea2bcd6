"""Which nodes backward passes run."""

import pytest

from diagnose.facts.autograd.backward import Recompute, backward_nodes, backward_ops, recompute
from diagnose.facts.autograd.table_gradients import table_gradients
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.spans import host_spans
from diagnose.synthetic.reading import facts_of
from diagnose.trace.enums import SpanKind

NODE = '"autograd::engine::evaluate_function: MmBackward0"'
ADD = '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"'


def step(*items: str) -> Facts:
    """One step of 100 ms; `N` is a node of the backward pass, `A` one that adds to a gradient."""
    items = tuple(f'{item} "Fwd thread id"=1' if item[0] == "N" and "Fwd" not in item else item for item in items)
    synthetic = " | ".join(items).replace("N ", f"{NODE} ").replace("A ", f"{ADD} ")
    return facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {synthetic}")


FORWARD = "aten::ones_like 0-1"
FIRST = ("N 2-6 sequence=9", "N 7-17 sequence=5", "A 17-18")
SECOND = ("aten::ones_like 20-21", "N 22-26 sequence=8", "N 27-37 sequence=5", "A 37-38")


def test_passes_are_told_apart_by_what_the_main_thread_does_between_them() -> None:
    found = backward_nodes(step(FORWARD, *FIRST, *SECOND))
    assert found.passed.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.adds.tolist() == [False, False, True] * 2
    assert found.first.tolist() == [0, 3]


def test_ops_inside_a_node_are_part_of_its_pass() -> None:
    found = backward_nodes(step(FORWARD, "N 2-6 sequence=9", "aten::mm 3-5", "N 7-17 sequence=5"))
    assert found.passed.tolist() == [0, 0]


def test_without_a_backward_pass_nothing_is_known() -> None:
    with pytest.raises(Missing, match="backward passes"):
        backward_nodes(step("aten::mul 0-9 sequence=0"))


def test_an_op_has_made_the_nodes_from_its_number_to_that_of_the_op_after_it() -> None:
    """The first op makes none, the second two, of which the inner op makes one."""
    facts = step(
        "aten::sub 0-4 sequence=7",
        "aten::linear 5-9 sequence=7",
        "aten::addmm 7-8 sequence=8",
        "aten::relu 10-14 sequence=9",
        "N 20-24 sequence=9",
        "N 25-29 sequence=8",
        "N 30-34 sequence=7",
    )

    def numbers(*names: str) -> list[int]:
        ops = host_spans(facts, SpanKind.OP, named=lambda name: name in names)
        return sorted(facts.rank.ops["sequence"].loc[backward_ops(facts, ops)].tolist())

    assert numbers("aten::sub") == []
    assert numbers("aten::linear") == [7, 8]
    assert numbers("aten::relu") == [9]
    assert numbers("aten::sub", "aten::linear", "aten::relu") == [7, 8, 9]


NODE_OF_RECOMPUTE = '"autograd::engine::evaluate_function: AddmmBackward0"'
LINEAR = 'shapes=[[1000,4],[4,4]] types=["float","float"]'


def synthetic(*backward: str) -> Recompute | None:
    """Two steps of 20 ms: three layers forward on the main thread, then a backward pass on its own."""
    facts = facts_of(f"""
        2 steps of 20
        cpu  aten::linear 1-2 x3 sequence=5 {LINEAR}
        cpu autograd  {" | ".join(backward)}
        gpu  bf16_gemm 10-14 @6.5 from autograd | bf16_gemm 14-16 @9.5 from autograd
    """)
    return recompute(facts)


def test_a_node_that_runs_forward_ops_for_autograd() -> None:
    """The first, but not the last, launches 4 ms; between two of three ops of 1 ms lies 1 ms of Python."""
    found = synthetic(
        f'{NODE_OF_RECOMPUTE} 5-12 sequence=7 "Fwd thread id"=1',
        f"aten::linear 6-7 sequence=9 {LINEAR}",
        f"aten::linear 8-9 x2 sequence=10 {LINEAR}",
        f"aten::mm 10-11 {LINEAR}",
    )
    assert (found.pieces, found.host_ns) == (1, 4_000_000)
    assert (found.work.host_ns, found.work.device_ns) == (3_000_000, 6_000_000)
    ((_, between),) = found.between
    assert between.total == 2 * 1_000_000  # in two steps
    assert found.bytes == 3 * 1000 * 4 * 4


def test_ops_without_autograd_are_formulas_of_the_backward_pass() -> None:
    assert synthetic(f'{NODE_OF_RECOMPUTE} 5-12 sequence=7 "Fwd thread id"=1', f"aten::linear 6-7 x3 {LINEAR}") is None


def test_a_second_derivative_records_ops_that_no_forward_pass_had() -> None:
    ops = (f"aten::linear 6-7 sequence=9 {LINEAR}", "aten::mul 7-8 sequence=10", "aten::add 8-9 sequence=11")
    assert synthetic(f'{NODE_OF_RECOMPUTE} 5-12 sequence=7 "Fwd thread id"=1', *ops) is None


def test_without_a_backward_pass_nothing_is_computed_again() -> None:
    assert recompute(facts_of("2 steps of 9\ncpu aten::mm 0-1\ngpu sgemm 1-2 @0.5")) is None


BACK = '"autograd::engine::evaluate_function: {}" {} sequence={} "Fwd thread id"=1'


def with_table(*items: str) -> Facts:
    return facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}")


DENSE = "aten::embedding_dense_backward 0-30 shapes=[[256,32],[256],[],[],[]]"
FILL = "aten::fill_ 1-29 shapes=[[20000,32],[]]"
UPDATE = '"Optimizer.step#SGD.step" 50-80'


def test_the_gradient_of_a_table_and_its_update() -> None:
    """Of two updates one is of the table."""
    table = "aten::add_ 51-61 shapes=[[20000,32],[20000,32],[]]"
    (found,) = table_gradients(with_table(DENSE, FILL, UPDATE, table, "aten::add_ 62-79 shapes=[[512,32],[512,32],[]]"))
    assert (found.shape, found.rows) == ((20000, 32), 256)
    assert (found.back.host_ns, found.updated.host_ns) == (30_000_000, 10_000_000)


LISTS = "aten::_fused_sgd_ 51-61 shapes=[[],[]]"  # torch records no list of more than 30 tensors


def test_of_weights_that_are_updated_at_once_the_gradients_tell_the_share_of_the_table() -> None:
    """Of 800,000 elements 640,000."""
    accumulated = (
        f"torch::autograd::AccumulateGrad {at} shapes=[{shape}]"
        for at, shape in (("40-41", "[20000,32]"), ("42-43", "[400,400]"))
    )
    (found,) = table_gradients(with_table(DENSE, FILL, *accumulated, UPDATE, LISTS))
    assert (found.listed.host_ns, len(found.updated.ids)) == (10_000_000, 0)
    assert found.share == pytest.approx(0.8)


def test_weights_that_are_updated_at_once_cannot_be_told_apart_without_their_gradients() -> None:
    (found,) = table_gradients(with_table(DENSE, FILL, UPDATE, LISTS))
    assert (found.back.host_ns, len(found.updated.ids), len(found.listed.ids)) == (30_000_000, 0, 0)


def test_tables_of_one_shape_count_together() -> None:
    again = (DENSE.replace("0-30", "30-40").replace("256]", "512]"), FILL.replace("1-29", "31-39"))
    (found,) = table_gradients(with_table(DENSE, FILL, *again))
    assert (found.rows, found.back.host_ns, len(found.back.ids)) == (512, 40_000_000, 2)


@pytest.mark.parametrize("weights", ["[20000,32]", "[32,20000]"])
def test_the_table_may_be_the_weights_of_the_output_layer_too(weights: str) -> None:
    assert table_gradients(with_table(DENSE, FILL, f"aten::mm 40-45 shapes=[[256,32],{weights}]")) == ()


def test_a_device_does_it_where_it_was_launched() -> None:
    facts = facts_of(f"""
        1 steps of 100
        cpu  {DENSE.replace("0-30", "0-3")} | {FILL.replace("1-29", "1-2")}
        gpu  fill 1.5-11.5 @1.2 | reduce 12-17 @2.5 | sgemm 17-30 @4
    """)
    (found,) = table_gradients(facts)
    assert (found.back.host_ns, found.back.device_ns, len(found.back.work_ids)) == (3_000_000, 15_000_000, 2)


def test_how_large_a_table_is_tells_what_is_filled() -> None:
    for items in ((DENSE,), (DENSE, "aten::fill_ 1-29 shapes=[[],[]]")):
        with pytest.raises(Missing, match="sizes of the tensors"):
            table_gradients(with_table(*items))


def test_without_shapes_nothing_is_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        table_gradients(with_table("aten::one_hot 0-10"))
