"""What device operations take after changes: figures by hand, whatever the order in which changes are named."""

from itertools import permutations

import numpy as np
import pytest

from diagnose.costs.book import (
    CAST_BYTES,
    CAUSAL,
    FIXED_NS,
    MOVED_16,
    QUANTISED,
    UNKNOWN_CHAIN,
    UNKNOWN_COPY,
    UNKNOWN_RATIO,
    cost_book,
)
from diagnose.costs.changes import (
    Attended,
    Chained,
    Change,
    Enlarged,
    InPrecision,
    Padded,
    Pinned,
    Recost,
    Searched,
    UpdatedAtOnce,
    WellChosen,
)
from diagnose.costs.known import Family, Grade, Known, known
from diagnose.facts.core.base import Facts
from diagnose.facts.core.work import work_table
from diagnose.facts.device.fusion import attention_chains
from diagnose.synthetic.reading import facts_of
from diagnose.trace.hardware import H100

LOW, LIKELY, HIGH = 0, 1, 2
PEAK = {"fp32": 67e3, "tf32": 495e3, "bf16": 989e3}  # FLOP a ns
MEMORY = 3350.0  # bytes a ns


def row(family: Family, dtype: str, grade: Grade = Grade.ALIGNED) -> Known:
    """What is known of an H100."""
    found = known(H100, family, dtype, grade)
    assert found is not None
    return found


def product(size: int, run: str, kind: str = "sgemm", dtype: str = "float") -> Facts:
    return facts_of(f"""
        1 steps of 100
        cpu  aten::mm 0-1 shapes=[[{size},{size}],[{size},{size}]] types=["{dtype}","{dtype}"]
        gpu  {kind} {run} @0.5
    """)


def left_us(facts: Facts, level: int, *changes: Change | Recost) -> list[float]:
    """What is left of each device operation; 0 of those that are part of another now."""
    table = work_table(facts)
    recosts = [one if isinstance(one, Recost) else Recost(table.ids, one) for one in changes]
    left = cost_book(facts).left(recosts, level)
    share = np.ones(len(table.ids))
    share[np.searchsorted(table.ids, left.ids)] = left.share
    share[np.isin(table.ids, left.gone)] = 0
    return [round(us, 3) for us in (table.dur_ns * share / 1e3).tolist()]


def test_a_product_in_tf32_takes_what_such_were_measured_to_take() -> None:
    # 2 x 8192^3 operations take an H100 22 ms in fp32.
    facts, one = product(8192, "1-23"), row(Family.PRODUCT, "tf32")
    likely = (2 * 8192**3 / (PEAK["tf32"] * one.share) + one.fixed_ns) / 1e3
    assert left_us(facts, LIKELY, InPrecision("tf32")) == [pytest.approx(likely, abs=1e-2)]
    assert left_us(facts, LOW, InPrecision("tf32")) == [pytest.approx(likely * one.most, abs=1e-2)]
    assert left_us(facts, HIGH, InPrecision("tf32")) == [pytest.approx(likely * one.least, abs=1e-2)]


def test_what_a_product_takes_beyond_reason_it_takes_after_the_change_as_well() -> None:
    one, fp32 = row(Family.PRODUCT, "tf32"), row(Family.PRODUCT, "fp32")
    usual_us = (2 * 8192**3 / (PEAK["fp32"] * fp32.share) + fp32.fixed_ns) / 1e3
    likely = (2 * 8192**3 / (PEAK["tf32"] * one.share) + one.fixed_ns) / 1e3
    assert left_us(product(8192, "1-67"), LIKELY, InPrecision("tf32")) == [
        pytest.approx(likely * 66_000 / usual_us / 1.5, abs=1e-1)
    ]


def test_without_shapes_the_rates_tell() -> None:
    facts = facts_of("1 steps of 100\ncpu  aten::mm 0-1\ngpu  sgemm 1-21 @0.5")
    shares = row(Family.PRODUCT, "fp32").share / row(Family.PRODUCT, "tf32").share
    likely = 20_000 * PEAK["fp32"] / PEAK["tf32"] * shares
    assert left_us(facts, LIKELY, InPrecision("tf32")) == [pytest.approx(likely, abs=1)]
    assert left_us(facts, LOW, InPrecision("tf32")) == [pytest.approx(likely * UNKNOWN_RATIO[LOW], abs=1)]


def test_the_narrower_of_two_types_counts() -> None:
    facts, one = product(8192, "1-23"), row(Family.PRODUCT, "bf16")
    alone = left_us(facts, LIKELY, InPrecision("bf16"))
    assert alone == [pytest.approx((2 * 8192**3 / (PEAK["bf16"] * one.share) + one.fixed_ns) / 1e3, abs=1e-2)]
    assert left_us(facts, LIKELY, InPrecision("bf16"), InPrecision("tf32")) == alone
    assert left_us(facts, LIKELY, InPrecision("tf32"), InPrecision("bf16")) == alone


def test_autocast_casts_the_weight_of_two_of_three_products() -> None:
    facts = product(8192, "1-23")
    (without,), (with_casts,) = (left_us(facts, LIKELY, InPrecision("bf16", cast)) for cast in (False, True))
    cast_us = CAST_BYTES * 8192**2 * 2 / 3 / (0.9 * MEMORY) / 1e3
    assert with_casts - without == pytest.approx(cast_us, abs=1e-2)


def test_an_odd_size_is_slow_in_16_bits_until_it_is_padded() -> None:
    odd, aligned = row(Family.PRODUCT, "bf16", Grade.ODD), row(Family.PRODUCT, "bf16")
    took = 2 * 8191**3 / (PEAK["bf16"] * odd.share) + odd.fixed_ns
    facts = product(8191, f"1-{1 + took / 1e6:.6f}", "bf16_gemm", "c10::BFloat16")
    padded = (2 * 8191**3 / (PEAK["bf16"] * aligned.share) + aligned.fixed_ns) / 1e3
    assert left_us(facts, LIKELY, Padded()) == [pytest.approx(padded, abs=1e-1)]
    in_fp32 = product(8191, "1-23")
    assert left_us(in_fp32, LIKELY, InPrecision("bf16")) == [pytest.approx(took / 1e3, abs=1e-1)]
    assert left_us(in_fp32, LIKELY, InPrecision("bf16"), Padded()) == [pytest.approx(padded, abs=1e-1)]


def test_fp8_pays_for_its_casts() -> None:
    facts, one = product(8192, "1-2.4", "bf16_gemm", "c10::BFloat16"), row(Family.PRODUCT, "fp8")
    computed = 2 * 8192**3 / (1979e3 * one.share) + one.fixed_ns
    casts = QUANTISED * 3 * 2 * 8192**2 / (0.9 * MEMORY)
    assert left_us(facts, LIKELY, InPrecision("fp8")) == [pytest.approx((computed + casts) / 1e3, abs=1e-1)]


def test_half_the_bytes_of_what_only_moves_data() -> None:
    facts = facts_of("""
        1 steps of 100
        cpu  aten::mul 0-1 shapes=[[8192,8192],[8192,8192]] types=["float","float"]
        cpu  aten::_softmax 2-3 shapes=[[8192,8192],[],[]] types=["float","Scalar","Scalar"]
        cpu  aten::mul 4-5 shapes=[[8192,8192],[8192,8192]] types=["c10::BFloat16","c10::BFloat16"]
        gpu  pointwise 10-10.3 @0.5 | softmax 11-11.2 @2.5 | pointwise 12-12.2 @4.5
    """)
    half = FIXED_NS / 1e3 + (300 - FIXED_NS / 1e3) / 2
    assert left_us(facts, LIKELY, InPrecision("bf16")) == [half, pytest.approx(100.75), 200]
    assert left_us(facts, LIKELY, InPrecision("tf32")) == [300, 200, 200]
    # Autocast keeps softmax in fp32, and casts what it takes and gives; of the rest some stays in fp32.
    some = FIXED_NS / 1e3 + (300 - FIXED_NS / 1e3) * MOVED_16[LIKELY]
    casts = 2 * CAST_BYTES * 8192**2 / (0.9 * MEMORY) / 1e3
    assert left_us(facts, LIKELY, InPrecision("bf16", autocast=True)) == [
        pytest.approx(some, abs=1e-2),
        pytest.approx(200 + casts, abs=1e-2),
        200,
    ]


ATTENTION = """
1 steps of 100
cpu  aten::bmm 0-1 shapes=[[96,1024,64],[96,64,1024]] types=["{dtype}","{dtype}"]
cpu  aten::_softmax 2-3 shapes=[[96,1024,1024],[],[]] types=["{dtype}","Scalar","Scalar"]
cpu  aten::bmm 4-5 shapes=[[96,1024,1024],[96,1024,64]] types=["{dtype}","{dtype}"]
gpu  {gemm} 10-11 @0.5 | softmax 11-12 @2.5 | {gemm} 12-13 @4.5
"""


def fused(facts: Facts) -> Recost:
    (one,) = attention_chains(facts)
    return Recost(one.ids, Attended(one.group, one.flops, one.elements, one.backward, one.masked))


@pytest.mark.parametrize(
    ("dtype", "gemm", "math"), [("float", "sgemm", "fp32"), ("c10::BFloat16", "bf16_gemm", "bf16")]
)
def test_attention_as_one_kernel(dtype: str, gemm: str, math: str) -> None:
    facts, one = facts_of(ATTENTION.format(dtype=dtype, gemm=gemm)), row(Family.ATTENTION, math, Grade.FORWARD)
    ns = 4 * 96 * 1024**2 * 64 / (PEAK[math] * one.share) + one.fixed_ns
    assert left_us(facts, LIKELY, fused(facts)) == [pytest.approx(ns / 1e3, abs=1e-2), 0, 0]
    causal = CAUSAL * (ns - one.fixed_ns) + one.fixed_ns
    assert left_us(facts, HIGH, fused(facts)) == [pytest.approx(causal * one.least / 1e3, abs=1e-2), 0, 0]


def test_attention_is_fused_in_the_precision_of_the_other_changes() -> None:
    in_fp32, in_16 = (facts_of(ATTENTION.format(dtype=dtype, gemm=gemm)) for dtype, gemm in _BOTH)
    changed = left_us(in_fp32, LIKELY, fused(in_fp32), InPrecision("bf16", autocast=True))
    assert changed == left_us(in_16, LIKELY, fused(in_16))


_BOTH = (("float", "sgemm"), ("c10::BFloat16", "bf16_gemm"))


@pytest.mark.parametrize("level", [LOW, LIKELY, HIGH])
def test_the_order_of_changes_does_not_matter(level: int) -> None:
    facts = facts_of(
        ATTENTION.format(dtype="float", gemm="sgemm")
        + """
cpu  aten::mul 20-21 shapes=[[8192,8192],[8192,8192]] types=["float","float"]
cpu  aten::add 22-23 shapes=[[8192,8192],[8192,8192]] types=["float","float"]
cpu  aten::mm 24-25 shapes=[[4096,4096],[4096,50257]] types=["float","float"]
gpu  pointwise 30-31 @20.5 | pointwise 31-32 @22.5 | sgemm 40-70 @24.5
"""
    )
    ids = work_table(facts).ids
    chain = Recost(ids[[3, 4]], Chained(np.zeros(2, dtype=np.int64), np.array([8192**2 * 12.0])))
    softmax_too = Recost(ids[[0, 1]], Chained(np.zeros(2, dtype=np.int64), np.zeros(1)))
    changes = [
        fused(facts),
        Recost(ids, InPrecision("bf16", autocast=True)),
        Recost(ids, InPrecision("tf32")),
        Recost(ids, Padded()),
        chain,
        softmax_too,
    ]
    for many in range(1, len(changes) + 1):
        for some in permutations(changes, many):
            ordered = sorted(some, key=changes.index)
            assert left_us(facts, level, *some) == left_us(facts, level, *ordered)


CHAIN = """
1 steps of 100
cpu  aten::mul 0-1 {mul} | aten::add 2-3 {mul} | aten::relu 4-5 {relu}
gpu  pointwise 10-10.5 @0.5 | pointwise 11-11.4 @2.5 | pointwise 12-12.3 @4.5
"""
TWO = 'shapes=[[8192,8192],[8192,8192]] types=["float","float"]'
ONE = 'shapes=[[8192,8192]] types=["float"]'


def test_a_chain_reads_and_writes_once() -> None:
    facts, one = facts_of(CHAIN.format(mul=TWO, relu=ONE)), row(Family.CHAIN, "", Grade.ANY)
    group, bytes_ = np.zeros(3, dtype=np.int64), np.array([4 * 4.0 * 8192**2])
    ns = bytes_[0] / (MEMORY * one.share) + one.fixed_ns
    assert left_us(facts, LIKELY, Chained(group, bytes_)) == [pytest.approx(ns / 1e3, abs=1e-2), 0, 0]
    # In 16 bits half of its bytes are left, but for the time that each of the three takes whatever it moves.
    narrowed = (3 * FIXED_NS + (1_200_000 - 3 * FIXED_NS) / 2) / 1_200_000
    half = bytes_[0] * narrowed / (MEMORY * one.share) + one.fixed_ns
    both = left_us(facts, LIKELY, Chained(group, bytes_), InPrecision("bf16"))
    assert both == [pytest.approx(half / 1e3, abs=1e-2), 0, 0]


def test_what_stays_in_a_chain_takes_its_time() -> None:
    facts, one = facts_of(CHAIN.format(mul=TWO, relu=ONE)), row(Family.CHAIN, "", Grade.ANY)
    chain = Chained(np.zeros(3, dtype=np.int64), np.array([1e9]), np.array([False, True, False]))
    us = 400 + (1e9 / (MEMORY * one.share) + one.fixed_ns) / 1e3
    assert left_us(facts, LIKELY, chain) == [pytest.approx(us, abs=1e-2), 0, 0]


def test_a_chain_of_unknown_bytes_takes_its_longest_at_least() -> None:
    facts, group = facts_of(CHAIN.format(mul="", relu="")), np.zeros(3, dtype=np.int64)
    for level in (LOW, LIKELY, HIGH):
        us = 500 + UNKNOWN_CHAIN[level] * 700
        assert left_us(facts, level, Chained(group, np.zeros(1))) == [pytest.approx(us), 0, 0]


def test_a_fused_update_passes_once_over_all_and_keeps_its_launches() -> None:
    facts, one = facts_of(CHAIN.format(mul="", relu="")), row(Family.OPTIMIZER, "fp32", Grade.ANY)
    ns = 1e9 / (MEMORY * one.share) + one.fixed_ns
    found = left_us(facts, LIKELY, UpdatedAtOnce(np.zeros(3, dtype=np.int64), np.array([1e9])))
    assert found == [pytest.approx(took * ns / 1.2e6, abs=1e-2) for took in (500, 400, 300)]


def test_copies_from_pinned_memory() -> None:
    facts = facts_of("1 steps of 100\ncpu  aten::to 0-20\ngpu  h2d 0.1-20.1 @0.05-15 pageable 100MB")
    one = row(Family.COPY, "", Grade.ANY)
    ns = 100e6 / (63.0 * one.share) + one.fixed_ns
    assert left_us(facts, LIKELY, Pinned()) == [pytest.approx(ns / 1e3, rel=0.05)]
    unknown = facts_of("1 steps of 100\ndevice 1080\ncpu  aten::to 0-20\ngpu  h2d 0.1-20.1 @0.05-15 pageable 100MB")
    assert left_us(unknown, LIKELY, Pinned()) == [pytest.approx(20_000 * UNKNOWN_COPY[LIKELY])]


def test_with_twice_the_batch_a_kernel_that_fills_a_quarter_takes_as_long() -> None:
    facts = facts_of("1 steps of 10\ncpu  aten::mm 0-0.1\ngpu  bf16_gemm 1-2 @0.01 blocks=33")
    assert left_us(facts, HIGH, Enlarged(2)) == [500]
    most = facts_of("1 steps of 10\ncpu  aten::mm 0-0.1\ngpu  bf16_gemm 1-2 @0.01 blocks=99")
    assert left_us(most, HIGH, Enlarged(2)) == [750]


def test_what_a_search_finds_was_measured_on_one_device() -> None:
    drawn = "1 steps of 100\ndevice {}\ncpu  aten::cudnn_convolution 0-1\ngpu  conv 10-20 @0.5"
    assert left_us(facts_of(drawn.format("H100")), LIKELY, Searched()) == [10_000]
    assert left_us(facts_of(drawn.format("A100")), LIKELY, Searched()) == [9_000]


def test_a_kernel_that_may_have_to_stay_stays_at_low() -> None:
    facts, one = product(8192, "1-9", "bf16_gemm", "c10::BFloat16"), row(Family.PRODUCT, "bf16")
    likely = (2 * 8192**3 / (PEAK["bf16"] * one.share) + one.fixed_ns) / 1e3
    assert left_us(facts, LIKELY, WellChosen(certain=False)) == [pytest.approx(likely, abs=1e-2)]
    assert left_us(facts, LOW, WellChosen(certain=False)) == [8_000]
    assert left_us(facts, LOW, WellChosen()) == [pytest.approx(likely * one.most, abs=1e-2)]


def test_on_a_device_that_is_not_known_nothing_is_said_of_products() -> None:
    facts = facts_of("1 steps of 100\ndevice 1080\ncpu  aten::mm 0-1\ngpu  sgemm 1-21 @0.5")
    assert left_us(facts, LIKELY, InPrecision("bf16")) == [20_000]


def test_no_change_is_no_change() -> None:
    facts = product(8192, "1-23")
    left = cost_book(facts).left([], LIKELY)
    assert (left.ids.tolist(), left.gone.tolist()) == ([], [])
    nothing = Recost(np.zeros(0, dtype=np.int64), InPrecision("bf16"))
    assert left_us(facts, LIKELY, nothing) == [22_000]
