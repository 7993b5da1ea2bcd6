"""Fourier transforms of lengths with large prime factors."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.shapes.transforms import UnhandyTransforms, largest_prime, unhandy_transforms
from diagnose.synthetic.reading import facts_of


def of(*items: str) -> tuple[UnhandyTransforms, ...]:
    return unhandy_transforms(facts_of(f"4 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}"))


@pytest.mark.parametrize(
    ("number", "prime"), [(1, 1), (2, 2), (8192, 2), (8190, 13), (2047, 89), (8191, 8191), (22, 11), (49, 7)]
)
def test_the_largest_prime(number: int, prime: int) -> None:
    assert largest_prime(number) == prime


def test_there_and_back() -> None:
    """Of 2047 numbers 1024 are left of the spectrum; gradients go through a transform of all. 2048 is 2 ** 11."""
    (found,) = of(
        "aten::fft_rfft 0-11 shapes=[[4,1024],[],[],[]]",
        "aten::_fft_r2c 1-11 shapes=[[4,2047],[],[],[]]",
        "aten::_fft_c2r 20-25 shapes=[[4,1024],[],[],[]]",
        "aten::_fft_c2c 30-34 shapes=[[4,2047],[],[],[]]",
        "aten::_fft_r2c 40-45 shapes=[[4,512],[],[],[]]",
    )
    assert (found.length, found.prime, found.handy, found.times) == (2047, 89, 2048, 3)
    assert (found.goes_back, found.work.host_ns) == (True, 19_000_000)


def test_a_spectrum_that_stays_one() -> None:
    (found,) = of("aten::_fft_r2c 0-10 shapes=[[4,509],[],[],[]]", "aten::_fft_c2r 20-25 shapes=[[4,256],[],[],[]]")
    assert found.goes_back is False
    assert found.work.host_ns == 10_000_000


@pytest.mark.parametrize("length", [8192, 2310, 8190, 61, 1 << 24])
def test_what_is_handy_short_or_nobody_s(length: int) -> None:
    assert of(f"aten::_fft_r2c 0-10 shapes=[[4,{length}],[],[],[]]") == ()


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        of("aten::_fft_r2c 0-10")
