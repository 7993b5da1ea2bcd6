"""Adapters of low rank that are multiplied out and added to a full weight."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.shapes.adapters import Adapters, adapters
from diagnose.synthetic.reading import facts_of

NODE = '"autograd::engine::evaluate_function: MmBackward0"'
THIN = "aten::matmul 0-10 shapes=[[768,8],[8,512]] sequence=3"
SUM = "aten::add 10-15 shapes=[[768,512],[768,512],[]] sequence=4"
LAYER = "aten::linear 15-30 shapes=[[64,512],[768,512],[]] sequence=5"
BACK = f'{NODE} 40-70 sequence=5 "Fwd thread id"=1 | {NODE} 70-80 sequence=3 "Fwd thread id"=1'


def of(*rows: str) -> tuple[Adapters, ...]:
    return adapters(facts_of("\n".join(("1 step of 100", "2 threads, 4 cores", *(f"cpu  {row}" for row in rows)))))


def test_an_adapter_and_the_layer_that_takes_it() -> None:
    """The product, the sum, and the product's node; and the layer's node."""
    (found,) = of(f"{THIN} | {SUM} | {LAYER}", BACK)
    assert (found.rank, found.shape, found.times, found.steps_seen) == (8, (768, 512), 1, 1)
    assert (found.merging.host_ns, found.back.host_ns) == (25_000_000, 30_000_000)


def test_what_words_take_instead() -> None:
    """Thin products are 8 x 1280 in 768 x 512 of the layer's 15 ms, three times; of the sum's 5 ms it is twice 64 in
    512, three times. Of the backward pass one product takes the weight, which makes the gradient of the words.
    """
    products = "aten::mm 40-58 shapes=[[512,64],[64,768]] | aten::mm 58-70 shapes=[[64,768],[768,512]]"
    (found,) = of(f"{THIN} | {SUM} | {LAYER}", BACK, products)
    assert (found.apart_ns, found.still_ns) == (4_921_875, 12_000_000)


def test_the_sum_may_be_scaled_and_transposed() -> None:
    scaled = "aten::mul 10-11 shapes=[[768,512],[]] | aten::t 15-16 shapes=[[768,512]]"
    layer = "aten::mm 16-30 shapes=[[64,512],[512,768]] sequence=5"
    (found,) = of(f"{THIN} | {scaled} | {SUM.replace('10-15', '11-15')} | {layer}", BACK)
    assert found.merging.host_ns == 25_000_000


@pytest.mark.parametrize(
    "rows",
    [
        f"{THIN.replace('8', '100')} | {SUM} | {LAYER}",  # Not thin.
        f"{THIN} | {LAYER}",  # Taken by itself.
        f"{THIN} | {SUM}",  # No layer takes it.
        f"{THIN} | {SUM.replace('[[768,512],[768,512],[]]', '[[768,512],[512],[]]')} | {LAYER}",  # A bias is added.
        f"{THIN} | {SUM} | {LAYER.replace('[768,512]', '[768,500]')}",  # Of another size.
    ],
)
def test_what_is_none(rows: str) -> None:
    assert of(rows, BACK) == ()


def test_a_weight_that_learns_needs_the_full_gradient() -> None:
    added = '"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 80-85'
    learns = f"{added} | torch::autograd::AccumulateGrad 80-85 shapes=[[768,512]]"
    assert of(f"{THIN} | {SUM} | {LAYER}", BACK, learns) == ()


def test_without_a_backward_nobody_knows_what_learns() -> None:
    with pytest.raises(Missing, match="backward passes"):
        of(f"{THIN} | {SUM} | {LAYER}")
