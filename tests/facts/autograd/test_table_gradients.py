"""Dense gradients of tables."""

import pytest

from diagnose.facts.autograd.table_gradients import table_gradients
from diagnose.facts.core.base import Facts, Missing
from diagnose.synthetic.reading import facts_of

BACK = '"autograd::engine::evaluate_function: {}" {} sequence={} "Fwd thread id"=1'


def step(*items: str) -> Facts:
    """One step of 100 ms."""
    return facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}")


DENSE = "aten::embedding_dense_backward 0-30 shapes=[[256,32],[256],[],[],[]]"
FILL = "aten::fill_ 1-29 shapes=[[20000,32],[]]"
UPDATE = '"Optimizer.step#SGD.step" 50-80'


def test_the_gradient_of_a_table_and_its_update() -> None:
    """Of two updates one is of the table."""
    table = "aten::add_ 51-61 shapes=[[20000,32],[20000,32],[]]"
    (found,) = table_gradients(step(DENSE, FILL, UPDATE, table, "aten::add_ 62-79 shapes=[[512,32],[512,32],[]]"))
    assert (found.shape, found.rows) == ((20000, 32), 256)
    assert (found.back.host_ns, found.updated.host_ns) == (30_000_000, 10_000_000)


LISTS = "aten::_fused_sgd_ 51-61 shapes=[[],[]]"  # torch records no list of more than 30 tensors


def test_of_weights_that_are_updated_at_once_the_gradients_tell_the_share_of_the_table() -> None:
    """Of 800,000 elements 640,000."""
    accumulated = (
        f"torch::autograd::AccumulateGrad {at} shapes=[{shape}]"
        for at, shape in (("40-41", "[20000,32]"), ("42-43", "[400,400]"))
    )
    (found,) = table_gradients(step(DENSE, FILL, *accumulated, UPDATE, LISTS))
    assert (found.listed.host_ns, len(found.updated.ids)) == (10_000_000, 0)
    assert found.share == pytest.approx(0.8)


def test_weights_that_are_updated_at_once_cannot_be_told_apart_without_their_gradients() -> None:
    (found,) = table_gradients(step(DENSE, FILL, UPDATE, LISTS))
    assert (found.back.host_ns, len(found.updated.ids), len(found.listed.ids)) == (30_000_000, 0, 0)


def test_tables_of_one_shape_count_together() -> None:
    again = (DENSE.replace("0-30", "30-40").replace("256]", "512]"), FILL.replace("1-29", "31-39"))
    (found,) = table_gradients(step(DENSE, FILL, *again))
    assert (found.rows, found.back.host_ns, len(found.back.ids)) == (512, 40_000_000, 2)


@pytest.mark.parametrize("weights", ["[20000,32]", "[32,20000]"])
def test_the_table_may_be_the_weights_of_the_output_layer_too(weights: str) -> None:
    assert table_gradients(step(DENSE, FILL, f"aten::mm 40-45 shapes=[[256,32],{weights}]")) == ()


def test_a_device_does_it_where_it_was_launched() -> None:
    (found,) = table_gradients(
        facts_of(
            f"""
            1 steps of 100
            cpu  {DENSE.replace("0-30", "0-3")} | {FILL.replace("1-29", "1-2")}
            gpu  fill 1.5-11.5 @1.2 | reduce 12-17 @2.5 | sgemm 17-30 @4
            """
        )
    )
    assert (found.back.host_ns, found.back.device_ns, len(found.back.work_ids)) == (3_000_000, 15_000_000, 2)


def test_how_large_a_table_is_tells_what_is_filled() -> None:
    for items in ((DENSE,), (DENSE, "aten::fill_ 1-29 shapes=[[],[]]")):
        with pytest.raises(Missing, match="how large"):
            table_gradients(step(*items))


def test_without_shapes_nothing_is_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        table_gradients(step("aten::one_hot 0-10"))
