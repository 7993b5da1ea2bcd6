"""What products reach in a recording, against what is known: figures by hand."""

import numpy as np
import pytest

from diagnose.costs.known import Family, Grade, Known, known
from diagnose.costs.ops import costed_ops
from diagnose.costs.seen import FEWEST, LONG_NS, MOST, SPREAD, Seen, seen, seen_in
from diagnose.facts.core.base import Facts
from diagnose.synthetic.reading import facts_of
from diagnose.trace.hardware import H100

KIND = (Family.PRODUCT, "bf16", Grade.ALIGNED)


def row() -> Known:
    found = known(H100, *KIND)
    assert found is not None
    return found


def said_ns(size: int) -> float:
    return 2 * size**3 / (989e3 * row().share) + row().fixed_ns


def products(times: list[float], size: int = 4096, device: str = "H100") -> Facts:
    """Products of square matrices, that take so many times what is said of them."""
    ops, kernels = [], []
    for place, by in enumerate(times):
        start = 10 + place * 5
        ops.append(f'aten::mm {place}-{place + 0.5} shapes=[[{size},{size}],[{size},{size}]] types=["c10::BFloat16"]')
        kernels.append(f"bf16_gemm {start}-{start + by * said_ns(size) / 1e6:.6f} @{place + 0.25}")
    lines = [f"cpu {op}" for op in ops]
    return facts_of("\n".join(["1 steps of 100", f"device {device}", *lines, f"gpu {' | '.join(kernels)}"]))


def test_a_kind_takes_what_half_of_its_time_takes() -> None:
    found = seen(products([1.0, 1.2, 1.5]))
    # Of 3.7 in all the first 10 % are in the first call, half in the second, 90 % in the third.
    assert found.taken == {
        KIND: (pytest.approx(1.0, rel=1e-3), pytest.approx(1.2, rel=1e-3), pytest.approx(1.5, rel=1e-3))
    }
    corrected = found.known(H100, *KIND)
    assert corrected is not None
    assert corrected.share == pytest.approx(row().share / 1.2, rel=1e-3)
    assert corrected.fixed_ns == row().fixed_ns
    assert (corrected.least, corrected.most) == (pytest.approx(1 / 1.2, rel=1e-3), pytest.approx(1.5 / 1.2, rel=1e-3))


def test_the_range_is_never_narrower_than_calls_differ_anyway() -> None:
    corrected = seen(products([1.2] * 3)).known(H100, *KIND)
    assert corrected is not None
    assert (corrected.least, corrected.most) == (1 - SPREAD, 1 + SPREAD)


def test_other_kinds_stay_as_they_are_known() -> None:
    found = seen(products([1.2] * 3))
    for dtype, grade in (("bf16", Grade.ODD), ("fp32", Grade.ALIGNED)):
        assert found.known(H100, Family.PRODUCT, dtype, grade) == known(H100, Family.PRODUCT, dtype, grade)


@pytest.mark.parametrize(
    ("times", "size"),
    [
        ([1.2] * (FEWEST - 1), 4096),
        ([1.2] * 3, 1024),  # 3 us: they tell little of a rate
        ([MOST + 0.2] * 3, 4096),
    ],
)
def test_few_short_and_strange_products_tell_nothing(times: list[float], size: int) -> None:
    assert said_ns(4096) > LONG_NS > 1.2 * said_ns(1024)
    assert seen(products(times, size)) == Seen({})


def test_nothing_is_seen_where_peaks_are_not_known() -> None:
    assert seen(products([1.2] * 3, device="1080")) == Seen({})


def test_some_rows_alone_can_be_asked() -> None:
    facts = products([1.0, 1.0, 1.0, 1.9, 1.9])
    found = costed_ops(facts).products
    assert seen_in(found, H100, np.arange(5) < 3).taken[KIND][1] == pytest.approx(1.0, rel=1e-3)
    assert seen_in(found, H100, np.arange(5) > 2) == Seen({})
    assert seen(facts).taken[KIND][1] == pytest.approx(1.9, rel=1e-3)
