"""Which rows are computed for nothing: their gradients are zero, whatever is computed for them."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.values.idle_rows import idle_rows, zero_gradients
from diagnose.facts.values.ledger import Wasted
from diagnose.synthetic.reading import facts_of

STEP = "1 step of 100\n2 threads, 4 cores\n"
NODE = "autograd::engine::evaluate_function:"
LAYER = f"""
cpu  aten::addmm 0-20 sequence=5 | aten::mul 20-21 sequence=6
cpu  "{NODE} MulBackward0" 30-31 sequence=6 "Fwd thread id"=1
cpu  aten::mul 30-31
cpu  "{NODE} AddmmBackward0" 40-80 sequence=5 "Fwd thread id"=1
cpu  aten::mm 41-60 | aten::mm 60-79
"""
FORTH = "aten::addmm | aten::mul takes 0"
MASK = "aten::mul takes - back"


def back(idle: int) -> str:
    """Both products of a layer's backward pass."""
    return " | ".join([f"aten::mm takes 2 back idle {idle}"] * 2)


def of(values: str, drawn: str = LAYER, more: str = "") -> tuple[Wasted, ...]:
    return idle_rows(facts_of(f"{STEP}{more}values {values}\n{drawn}"))


def test_a_mask_leaves_rows_out() -> None:
    """Both products of the backward pass take the gradient, of which three quarters are zero."""
    (found,) = of(f"{FORTH} | {MASK} masked 75 | {back(75)}")
    assert (found.share, found.ops, found.steps_seen) == (0.75, ("aten::addmm",), 1)
    assert (found.longest_ns, found.wasted_ns) == (60_000_000, 45_000_000)


def test_rows_that_are_not_taken() -> None:
    """The gradient of a slice fills a map of zeros: no mask is multiplied."""
    (found,) = of(f"{FORTH} | {MASK} | {back(75)}")
    assert found.share == 0.75


@pytest.mark.parametrize(
    "values",
    [
        # Which rows count depends on what the layer gives: a margin, the hardest ones.
        f"{FORTH} | aten::mul takes 0 back masked 75 | {back(75)}",
        # As does what was computed of it, before the pass or in it.
        f"{FORTH} | aten::mul takes 1 back | {back(75)}",
        # Few rows are left out.
        f"{FORTH} | {MASK} masked 20 | {back(20)}",
        # All are: see masked_out_branch.
        f"{FORTH} | {MASK} masked 100 | {back(100)}",
    ],
)
def test_rows_that_are_needed(values: str) -> None:
    assert of(values) == ()


@pytest.mark.parametrize(("place", "needless"), [(" takes -,2", True), (" takes 1,2", False)])
def test_rows_that_are_picked_for_the_loss(place: str, needless: bool) -> None:
    """By a batch's own index, or as the hardest ones, which takes the losses of all."""
    drawn = f"""
cpu  aten::addmm 0-20 sequence=5 | aten::index 20-21 sequence=6
cpu  "{NODE} IndexBackward0" 30-34 sequence=6 "Fwd thread id"=1 | aten::new_zeros 30-31 | aten::index_put 31-33
cpu  "{NODE} AddmmBackward0" 40-80 sequence=5 "Fwd thread id"=1 | aten::mm 41-79
"""
    values = "aten::addmm | aten::index takes 0 | aten::new_zeros back"
    found = of(f"{values} | aten::index_put{place} back idle 100 | aten::mm takes 3 back idle 75", drawn)
    assert [one.share for one in found] == [0.75] * needless


def test_all_that_an_op_has_made_has_to_be_idle() -> None:
    """The layer has a second backward pass, whose gradient is not zero."""
    drawn = LAYER.replace("aten::mul 20-21 sequence=6", "aten::mul 20-21 sequence=7").replace(
        'MulBackward0" 30-31 sequence=6', 'MulBackward0" 30-31 sequence=7'
    )
    drawn += f'cpu  "{NODE} SplitBackward0" 85-90 sequence=6 "Fwd thread id"=1\ncpu  aten::cat 86-89'
    masked = f"{FORTH} | {MASK} masked 75 | {back(75)}"
    assert of(f"{masked} | aten::cat takes 2 back idle 75", drawn) != ()
    assert of(f"{masked} | aten::cat takes 2 back", drawn) == ()


def test_a_part_of_rows_of_which_some_were_idle_before() -> None:
    """A margin makes half of the rows idle; of those that go on to the layer, as others are of real data, most are."""
    hinge = "aten::addmm | aten::mul takes 0 | aten::mul takes 1 back | aten::mm takes 2 back idle 50"
    assert of(f"{hinge} | aten::mm takes 3 back idle 90") == ()


def test_masks_as_targets_that_are_ignored_are_told_elsewhere() -> None:
    losses = f"""
cpu  aten::linear 0-20 sequence=5 shapes=[[2,64,32],[500,32],[500]] | aten::addmm 1-19
cpu  aten::cross_entropy_loss 20-30 shapes=[[128,500],[128]] sequence=6 | aten::nll_loss_forward 21-22
cpu  "{NODE} NllLossBackward0" 30-31 sequence=6 "Fwd thread id"=1
cpu  aten::nll_loss_backward 30-31
cpu  "{NODE} AddmmBackward0" 40-80 sequence=5 "Fwd thread id"=1
cpu  aten::mm 41-79
"""
    values = "aten::addmm | aten::nll_loss_forward takes 0 | aten::nll_loss_backward takes 0,1 back"
    values += " | aten::mm takes 2 back idle 87"
    (found,) = of(values, losses)
    assert (round(found.share, 2), found.ops) == (0.87, ("aten::linear",))
    assert of(values, losses, "ignored 112 of 128 rows, 500 classes\n") == ()


def test_what_autograd_adds_up_behind_a_node_is_not_its_gradient() -> None:
    """Weights' gradients of two calls, which have rows of zeros where units are dead."""
    added = LAYER.replace("aten::mm 60-79", "aten::add 60-79")
    assert of(f"{FORTH} | {MASK} | aten::mm takes 2 back | aten::add takes 3 back idle 75", added) == ()


TWO = f"""
cpu  aten::addmm 0-10 sequence=4 | aten::addmm 10-20 sequence=5 | aten::mul 20-21 sequence=6
cpu  "{NODE} MulBackward0" 30-31 sequence=6 "Fwd thread id"=1 | aten::mul 30-31
cpu  "{NODE} AddmmBackward0" 40-60 sequence=5 "Fwd thread id"=1 | aten::mm 41-59
cpu  "{NODE} AddmmBackward0" 60-80 sequence=4 "Fwd thread id"=1 | aten::mm 61-79
"""
VALUES_OF_TWO = (
    "aten::addmm | aten::addmm takes 0 | aten::mul takes 1 | aten::mul takes - back masked 75"
    " | aten::mm takes 3 back idle 75 | aten::mm takes 4 back idle 71"
)


COUNTED = "cpu  aten::argmax 22-23 | aten::eq 23-24 | aten::sum 24-25"
"""A metric, which has no backward pass."""


@pytest.mark.parametrize(
    ("metric", "needless"),
    [
        # Hits are counted among all rows.
        ("aten::argmax takes 0 | aten::eq takes 2 | aten::sum takes 3", False),
        # Of those that count.
        ("aten::argmax takes 1 | aten::eq takes 2 | aten::sum takes 3", True),
        # Something is made that is as large.
        ("aten::argmax takes - | aten::eq takes 2 | aten::zeros_like takes 0", True),
    ],
)
def test_rows_that_a_metric_takes(metric: str, needless: bool) -> None:
    values = f"{FORTH} | {metric} | {MASK} masked 75 | {back(75).replace('takes 2', 'takes 5')}"
    found = of(values, LAYER + (COUNTED.replace("sum", "zeros_like") if "like" in metric else COUNTED))
    assert [one.share for one in found] == [0.75] * needless


def test_layers_before_those_that_a_metric_takes() -> None:
    """All rows of the second layer are needed, and so are those of the first, of which they are made."""
    counted = "cpu  aten::argmax 22-23"
    values = VALUES_OF_TWO.replace(" | aten::mul takes - back", " | aten::argmax takes {} | aten::mul takes - back")
    values = values.replace("takes 4", "takes 5").replace("takes 3", "takes 4")
    assert of(values.format(1), TWO + counted) == ()
    assert [one.share for one in of(values.format(2), TWO + counted)] == [0.71]


def test_ops_that_tell_what_is_learnt_of_what_to_do_are_no_metric() -> None:
    """Of the layer's own results it is told which of them the next op takes: gradients know of both."""
    told = LAYER.replace("aten::mul 20-21", "aten::gt 20-21 | aten::mul 21-22")
    values = f"aten::addmm | aten::gt takes 0 | aten::mul takes 0,1 | {MASK} masked 75 | {back(75)}"
    assert [one.share for one in of(values.replace("takes 2 back", "takes 3 back"), told)] == [0.75]


def test_one_cause_is_told_once() -> None:
    """A mask leaves rows out of both layers of a net. The first computes all that the second needs, and more."""
    (found,) = of(VALUES_OF_TWO, TWO)
    assert (found.share, found.longest_ns) == (0.71, 60_000_000)


@pytest.mark.parametrize("name", ["aten::lstm", "aten::batch_norm"])
def test_results_that_need_other_rows(name: str) -> None:
    """The loss takes the last state of each row, which all before have led to: only the other layer is told."""
    drawn = TWO.replace("aten::addmm 0-10 sequence=4", f"{name} 0-10 sequence=4 | aten::addmm 1-9")
    (found,) = of(VALUES_OF_TWO, drawn)
    assert (found.share, found.ops, found.longest_ns) == (0.75, ("aten::addmm",), 30_000_000)


def test_single_sums_are_no_layers() -> None:
    drawn = LAYER.replace("aten::addmm", "aten::add").replace("AddmmBackward0", "AddBackward0")
    assert (
        of("aten::add | aten::mul takes 0 | aten::mul takes - back | aten::mm takes 2 back idle 75 | aten::mm", drawn)
        == ()
    )


def test_nobody_counted() -> None:
    with pytest.raises(Missing, match="diagnose profile"):
        idle_rows(facts_of(f"{STEP}{LAYER}"))
    with pytest.raises(Missing, match="backward passes"):
        idle_rows(facts_of(f"{STEP}values aten::addmm\ncpu  aten::addmm 0-20"))


SIGN = f"""
cpu  aten::addmm 0-20 sequence=5 | aten::sign 20-21 sequence=6
cpu  "{NODE} SignBackward0" 30-31 sequence=6 "Fwd thread id"=1 | aten::zeros_like 30-31
cpu  "{NODE} AddmmBackward0" 40-60 sequence=5 "Fwd thread id"=1 | aten::mm 41-59
cpu  "{NODE} AddmmBackward0" 60-80 sequence=4 "Fwd thread id"=1 | aten::mm 61-79
"""
ZEROS = "aten::addmm | aten::sign takes 0 | aten::zeros_like back"


def test_gradients_that_came_through_a_sign() -> None:
    """And on, through all before it. The node that makes the zeros is there in any case."""
    (found,) = zero_gradients(
        facts_of(f"{STEP}values {ZEROS} | aten::mm takes 2 back idle 100 | aten::mm takes 3 back idle 100\n{SIGN}")
    )
    assert (found.times, found.work.host_ns, found.steps_seen) == (2, 40_000_000, 1)


def test_gradients_that_came_through_the_slope_of_a_slope() -> None:
    """As in a penalty of gradients: nothing can be detached there."""
    drawn = SIGN.replace("SignBackward0", "LeakyReluBackwardBackward0")
    found = zero_gradients(
        facts_of(f"{STEP}values {ZEROS} | aten::mm takes 2 back idle 100 | aten::mm takes 3 back idle 100\n{drawn}")
    )
    assert found == ()


@pytest.mark.parametrize("beside", ["aten::scatter_ 30.5-31", "aten::addmm 30.5-31"])
def test_zeros_beside_other_work(beside: str) -> None:
    """A buffer that is written to, or the zeros of a forward pass that is computed again."""
    drawn = SIGN.replace("aten::zeros_like 30-31", f"aten::zeros_like 30-30.5 | {beside}")
    name = beside.split()[0]
    rest = "aten::mm takes 2 back idle 100 | aten::mm takes 4 back idle 100"
    assert zero_gradients(facts_of(f"{STEP}values {ZEROS} | {name} back | {rest}\n{drawn}")) == ()


def test_gradients_that_other_ones_are_added_to() -> None:
    (found,) = zero_gradients(
        facts_of(f"{STEP}values {ZEROS} | aten::mm takes 2 back idle 100 | aten::mm takes 3 back idle 40\n{SIGN}")
    )
    assert (found.times, found.work.host_ns) == (1, 20_000_000)


def test_gradients_that_are_zero_by_chance() -> None:
    """No hinge is reached: in another step one may be."""
    hinge = ZEROS.replace("aten::zeros_like", "aten::threshold_backward takes 1")
    drawn = SIGN.replace("aten::zeros_like", "aten::threshold_backward")
    found = zero_gradients(
        facts_of(f"{STEP}values {hinge} | aten::mm takes 2 back idle 100 | aten::mm takes 3 back idle 100\n{drawn}")
    )
    assert found == ()
