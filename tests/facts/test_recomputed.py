"""What every layer computes again of that which has no gradient."""

from __future__ import annotations

import pytest

from diagnose.facts.autograd.recomputed import Recomputed, recomputed
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of

NODE = '"autograd::engine::evaluate_function: MulBackward0"'
ADD = '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"'


def layers(
    count: int = 3, *, op: str = "aten::rsqrt", shape: str = "[[8]]", extra: str = "", adds: str = "50-51 x3 every 10"
) -> tuple[Recomputed, ...]:
    """Layers of 12 ms: `op`, of 8 ms and without a gradient, and a product with one. Backward takes 10 ms each."""
    drawn = []
    for layer in range(count):
        begin, number = 12 * layer, layer + 1
        drawn.append(f"{op} {begin}-{begin + 8} sequence={number} shapes={shape} {extra}".strip())
        drawn.append(f"aten::mul {begin + 8}-{begin + 12} sequence={number} shapes=[[8,8],[8,8]]")
        back = 42 + 10 * (count - 1 - layer)
        drawn.append(f'{NODE} {back}-{back + 8} sequence={number} "Fwd thread id"=1')
    drawn.append(f"aten::ones_like 40-41 sequence={count + 1} shapes=[[]]")
    return recomputed(facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(drawn)} | {ADD} {adds}"))


def test_all_layers_but_the_first_compute_it_again() -> None:
    (found,) = layers()
    assert (found.ops, found.layers, found.steps_seen) == (("aten::rsqrt",), 3, 1)
    assert (found.again.host_ns, found.first.host_ns) == (16_000_000, 8_000_000)


def test_what_is_made_of_no_tensor_belongs_to_it() -> None:
    """A mask, of which torch gives the first op no number."""
    nodes = [f'{NODE} {62 - 10 * k}-{70 - 10 * k} sequence={k + 1} "Fwd thread id"=1' for k in range(3)]
    ops = [
        f"aten::full {12 * k}-{12 * k + 4} shapes=[[],[]] | aten::triu {12 * k + 4}-{12 * k + 8} sequence={k + 1}"
        f" shapes=[[8,8],[]] | aten::mul {12 * k + 8}-{12 * k + 12} sequence={k + 1} shapes=[[8,8]]"
        for k in range(3)
    ]
    drawn = " | ".join([*ops, *nodes, "aten::ones_like 40-41 sequence=4 shapes=[[]]", f"{ADD} 50-51 x3 every 10"])
    (found,) = recomputed(facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {drawn}"))
    assert (found.ops, found.again.host_ns) == (("aten::full", "aten::triu"), 16_000_000)


def test_two_may_be_two_inputs() -> None:
    assert layers(2, adds="50-51 x2 every 10") == ()


def test_rounds_between_which_no_gradient_is_complete_are_a_loop() -> None:
    assert layers(adds="70-71") == ()


@pytest.mark.parametrize(
    "op",
    [
        "aten::rand_like",
        "aten::linear",
        "aten::item",
        "aten::detach",
        "aten::select",
        "aten::add_",
        "aten::to",
        "mine::op",
    ],
)
def test_what_is_none(op: str) -> None:
    """It differs from layer to layer, is read, changes what was there, or only moves data; or nobody knows."""
    assert layers(op=op if ":" in op else f"aten::{op}") == ()


def test_weights_that_are_stored_as_bytes_differ() -> None:
    assert len(layers(extra='"Input type"=["float"]')) == 1
    assert layers(extra='"Input type"=["unsigned char"]') == ()


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        recomputed(facts_of("1 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10"))
    with pytest.raises(Missing, match="backward passes"):
        recomputed(facts_of("1 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10 shapes=[[8,8]]"))


def test_ops_on_other_shapes_are_others() -> None:
    """Of two layers each, which are no three."""
    node = [f'{NODE} {62 - 10 * k}-{70 - 10 * k} sequence={k + 1} "Fwd thread id"=1' for k in range(3)]
    ops = [
        f"aten::rsqrt {12 * k}-{12 * k + 8} sequence={k + 1} shapes=[[{8 if k else 4}]] |"
        f" aten::mul {12 * k + 8}-{12 * k + 12} sequence={k + 1} shapes=[[8,8]]"
        for k in range(3)
    ]
    drawn = " | ".join([*ops, *node, "aten::ones_like 40-41 sequence=4 shapes=[[]]", f"{ADD} 50-51 x3 every 10"])
    assert recomputed(facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {drawn}")) == ()
