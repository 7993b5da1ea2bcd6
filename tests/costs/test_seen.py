"""What products reach in a recording, against what is known: figures by hand."""

import numpy as np
import pytest

from diagnose.costs.known import Family, Grade, Known, known
from diagnose.costs.measured import FEWEST, LONG_NS, MOST, SPREAD, Seen, seen, seen_in
from diagnose.costs.ops import costed_ops
from diagnose.facts.core.base import Facts
from diagnose.pipeline import present
from diagnose.replay.saving import Basis
from diagnose.synthetic.reading import facts_of
from diagnose.trace.hardware import H100
from tests.rules import built_in

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


ON_GPU = """
4 steps of 40
device H100
cpu  aten::mul 0-0.1 | aten::add 0.2-0.3 | aten::gelu 0.4-0.5 | sync 1-39.01
gpu  pointwise 1-5 @0.05 | pointwise 5.01-9 @0.25 | pointwise 9.01-13 @0.45 | bf16_gemm 13.1-39 @0.6
"""
ON_CPU = """
4 steps of 100
1 threads, 2 cores
cpu  aten::mul 1-31 shapes=[[1024,1024],[1024,1024]] | aten::tanh 61-81 shapes=[[1024,1024]]
cpu  aten::add 31-61 shapes=[[1024,1024],[1024,1024]] | aten::mm 81-99 shapes=[[1024,1024],[1024,1024]]
"""


@pytest.mark.parametrize(("drawn", "basis"), [(ON_GPU, Basis.TIMED_ELSEWHERE), (ON_CPU, Basis.RULE_OF_THUMB)])
def test_changed_kernels_are_priced_by_timings_elsewhere(drawn: str, basis: Basis) -> None:
    """What a CPU's chain of ops takes as one is not known from any."""
    (found,) = present(facts_of(drawn), [built_in("unfused_pointwise")]).findings
    assert found.saving.basis is basis


def test_what_saves_time_of_the_host_as_well_is_a_typical_speed_up() -> None:
    starved = "4 steps of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02\ngpu  pointwise 0.111-0.114 @0.104 x90 every 0.02"
    (found,) = present(facts_of(starved), [built_in("launch_bound")]).findings
    assert found.saving.basis is Basis.RULE_OF_THUMB
