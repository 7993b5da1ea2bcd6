"""Which weights are made of others, and made again at every use."""

from __future__ import annotations

import pytest

from diagnose.facts.autograd.derived_weights import DerivedWeights, derived_weights
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.host.loops import loops
from diagnose.synthetic.reading import facts_of

QR = '"autograd::engine::evaluate_function: QrBackward0"'
LINEAR = '"autograd::engine::evaluate_function: AddmmBackward0"'
ADD = '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"'
ADDED = "torch::autograd::AccumulateGrad"


def rounds(
    count: int, weights: int = 1, *, op: str = "aten::linalg_qr", data: str = "[4,8]", gradient: str = "[8,8]"
) -> Facts:
    """Rounds of 5 ms: 4 make a weight, 1 uses it on data; backward takes as long. So many gradients at the end."""
    drawn = []
    for number in range(count):
        begin, back = 5 * number, 50 + 5 * (count - 1 - number)
        drawn.append(f"{op} {begin}-{begin + 4} sequence={2 * number + 1} shapes=[[8,8]]")
        drawn.append(f"aten::linear {begin + 4}-{begin + 5} sequence={2 * number + 2} shapes=[{data},[8,8]]")
        drawn.append(f'{LINEAR} {back}-{back + 1} sequence={2 * number + 2} "Fwd thread id"=1')
        drawn.append(f'{QR} {back + 1}-{back + 5} sequence={2 * number + 1} "Fwd thread id"=1')
    drawn.append(f"aten::ones_like 48-49 sequence={2 * count + 1} shapes=[[]]")
    end = 50 + 5 * count
    for number in range(weights):
        begin = end + 2 * number
        drawn.append(f"{ADD} {begin}-{begin + 2} | {ADDED} {begin}-{begin + 1} shapes=[{gradient}]")
    return facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(drawn)}")


def of(*args: int, **how: str) -> tuple[DerivedWeights, ...]:
    return derived_weights(rounds(*args, **how))


def test_one_weight_is_made_in_every_round() -> None:
    (found,) = of(5)
    assert (found.ops, found.made, found.weights, found.steps_seen) == (("aten::linalg_qr",), 5, 1, 1)
    assert (found.work.host_ns, found.repeated_ns) == (40_000_000, 32_000_000)
    assert found.forward.end_ns.tolist() == [4_000_000, 9_000_000, 14_000_000, 19_000_000, 24_000_000]


def test_there_are_as_many_weights_as_gradients_of_their_shape() -> None:
    assert [(one.made, one.weights) for one in of(5, 2)] == [(5, 2)]
    assert of(5, 5) == ()


@pytest.mark.parametrize("data", ["[8,16]", "[2,4,16]"])
def test_data_may_be_as_large(data: str) -> None:
    """Eight samples, or two of four rows."""
    assert of(5, data=data) == ()


def test_other_shapes_are_no_weights() -> None:
    assert of(5, gradient="[8,4]") == ()


def test_with_random_numbers_each_is_another() -> None:
    assert of(5, op="aten::bernoulli") == ()


def test_all_gradients_have_to_be_known() -> None:
    with pytest.raises(Missing, match="the shapes of all gradients"):
        of(5, gradient="")
    with pytest.raises(Missing, match="shapes"):
        derived_weights(facts_of("1 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10"))


def test_a_loop_gains_nothing_by_making_weights_together() -> None:
    """What uses weights is left: in five rounds, forward and back, 1 ms each. Of that 20 us come with any op, and what
    exceeds 500 us is as fast as it can be; one round in five stays."""
    (found,) = loops(rounds(5))
    assert (found.ns, found.fixed_ns) == (10_000_000, 200_000)
    assert (found.left, found.least_left) == (pytest.approx(1 - 0.8 * 0.02), pytest.approx(1 - 0.8 * 0.5))
