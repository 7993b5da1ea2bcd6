"""Filters that are long enough for Fourier transforms."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.shapes.filters import Filter, LongFilters, long_filters
from diagnose.synthetic.reading import facts_of

NODE = "autograd::engine::evaluate_function: ConvolutionBackward0"
CPU = "4 steps of 100\n2 threads, 4 cores\n"


def of(*items: str) -> tuple[LongFilters, ...]:
    return long_filters(facts_of(f"{CPU}cpu  {' | '.join(items)}"))


def test_what_transforms_would_take() -> None:
    """2 x (3 + 6) rows and 6 x 3 filters, 1,000 + 250 long: 45,000 numbers at 3 ns, at worst 8, at best 1.2."""
    (found,) = of("aten::conv1d 0-2 shapes=[[2,3,1000],[6,3,250],[6]]")
    assert found.sizes == Filter(batch=2, channels=3, filters=6, of_each=3, length=1000, taps=250)
    assert found.left == pytest.approx((45_000 * 8 / 2e6, 45_000 * 3 / 2e6, 45_000 * 1.2 / 2e6))


def test_gradients_take_transforms_as_well() -> None:
    """Four times 3 ns for each number, of 2 + 10 ms."""
    (found,) = of(
        "aten::conv1d 0-2 shapes=[[2,3,1000],[6,3,250],[6]] sequence=1",
        f'"{NODE}" 50-60 sequence=1 "Fwd thread id"=1',
    )
    assert found.work.host_ns == 12_000_000
    assert found.left[1] == pytest.approx(4 * 45_000 * 3 / 12e6)


@pytest.mark.parametrize(
    "conv",
    [
        "aten::conv1d 0-2 shapes=[[2,3,1000],[6,3,31],[6]]",  # short
        "aten::conv1d 0-0.1 shapes=[[2,3,1000],[6,3,250],[6]]",  # quicker than 0.135 ms
        "aten::conv1d 0-0.19 shapes=[[2,3,1000],[6,3,250],[6]]",  # not by much
        "aten::conv2d 0-2 shapes=[[2,3,100,100],[6,3,90,90],[6]]",  # of two dimensions
        "aten::conv1d 0-2 shapes=[[2,3,0],[6,3,250],[6]]",  # of nothing
    ],
)
def test_what_is_none(conv: str) -> None:
    assert of(conv) == ()


def test_on_a_gpu_nobody_has_measured_it() -> None:
    drawn = "4 steps of 100\ncpu  aten::conv1d 0-2 shapes=[[2,3,1000],[6,3,250],[6]]\ngpu  conv 1-90 @1"
    with pytest.raises(Missing, match="on this device"):
        long_filters(facts_of(drawn))
    assert long_filters(facts_of(drawn.replace("250", "25"))) == ()
