"""Rounds that compute what the rounds before had, and more."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.host.prefixes import GrowingPrefix, growing_prefix
from diagnose.synthetic.reading import facts_of

CPU = "4 steps of 100\n2 threads, 4 cores\n"


def of(*items: str) -> GrowingPrefix | None:
    return growing_prefix(facts_of(f"{CPU}cpu  {' | '.join(items)}"))


def rounds(*lengths: int, op: str = "aten::gru", shapes: str = "[[8,{n},64],[64]]", ms: int | None = None) -> list[str]:
    """One after the other, 20 ms apart, each 1 ms long and 1 for each place if nothing else is said."""
    return [f"{op} {20 * at}-{20 * at + (ms or 1 + n)} shapes={shapes.format(n=n)}" for at, n in enumerate(lengths)]


def test_a_text_that_is_read_anew_for_each_word() -> None:
    """1 ms, and 1 for each word: 2 to 5 ms for 1 to 4 words, 14 in all; 8 for one word each.

    At best, in proportion to what is new: 2 / 1 + 3 / 2 + 4 / 3 + 5 / 4.
    """
    found = of(*rounds(1, 2, 3, 4))
    assert found is not None
    assert (found.lengths, found.layer) == ((1, 2, 3, 4), "aten::gru")
    assert found.work.host_ns == 14_000_000
    assert found.left == pytest.approx(8 / 14)
    assert found.least_left == pytest.approx((2 + 3 / 2 + 4 / 3 + 5 / 4) / 14)


def test_what_was_given_is_new_to_the_first_round() -> None:
    """10 words are given, which take 11 ms; each round adds 2: 3 x (1 + 2) of 13 + 15 + 17 ms."""
    found = of(*rounds(10, 12, 14, 16))
    assert found is not None
    assert found.left == pytest.approx((11 + 9) / 56)
    assert found.least_left == pytest.approx((11 + 13 * 2 / 12 + 15 * 2 / 14 + 17 * 2 / 16) / 56)


def test_ops_that_grow_along_count_and_others_do_not() -> None:
    """Scores of 8 rows for each word, and what is collected: only the former goes. 1 ms each."""
    items = []
    for at, n in enumerate((1, 2, 3, 4)):
        begin = 20 * at
        items += [
            f"aten::gru {begin}-{begin + 2} shapes=[[8,{n},64],[64]]",
            f"aten::tanh {begin + 3}-{begin + 4} shapes=[[{8 * n},64]]",
            f"aten::softmax {begin + 5}-{begin + 6} shapes=[[8,400]]",
            f"aten::cat {begin + 7}-{begin + 8} shapes=[[[8,{n},64]]]",
        ]
    found = of(*items)
    assert found is not None
    assert found.work.host_ns == 4 * 3_000_000


def test_on_a_gpu_its_time_counts() -> None:
    """Calls take 1 ms each, kernels 2, 3, 4 and 5: 2 each would do."""
    kernels = " | ".join(f"sgemm {20 * at + 1}-{20 * at + 3 + at} @{20 * at + 0.5}" for at in range(4))
    calls = " | ".join(rounds(1, 2, 3, 4, ms=1))
    found = growing_prefix(facts_of(f"4 steps of 100\ncpu  {calls}\ngpu  {kernels}"))
    assert found is not None
    assert (found.work.host_ns, found.work.device_ns) == (4_000_000, 14_000_000)
    assert found.left == pytest.approx(8 / 14)


@pytest.mark.parametrize(
    "items",
    [
        rounds(1, 2, 3),  # few
        rounds(1, 2, 4, 8),  # the widths of a pyramid
        rounds(4, 3, 2, 1),
        rounds(0, 1, 2, 3),
        rounds(1, 2, 3, 4, op="aten::cat"),  # no layer
        rounds(1, 2, 3, 4, shapes="[[8,{n},64],[{n}]]"),  # with other weights each time
        rounds(32, 64, 96, 128, op="aten::linear", shapes="[[8,{n}],[32,{n}]]", ms=9),  # as in DenseNet
    ],
)
def test_what_is_none(items: list[str]) -> None:
    assert of(*items) is None


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        of("aten::gru 0-10")
