"""What is known of devices, and what products reach in a recording against that: figures by hand."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.costs.book import cost_book
from diagnose.costs.changes import InPrecision, Recost
from diagnose.costs.known import ELSEWHERE, Family, Grade, Known, grade_of, known, own_row, table
from diagnose.costs.measured import FEWEST, LONG_NS, MOST, SPREAD, Seen, seen, seen_in
from diagnose.costs.ops import costed_ops
from diagnose.facts.core.base import Facts
from diagnose.facts.core.work import work_table
from diagnose.pipeline import present
from diagnose.replay.saving import Basis
from diagnose.synthetic.reading import facts_of
from diagnose.trace import hardware
from diagnose.trace.hardware import H100, Peaks
from tests.rules import built_in

A100_40, A100_80 = hardware.KNOWN["A100 SXM 40 GB"], hardware.KNOWN["A100 SXM 80 GB"]
A100_PCIE_40, H100_PCIE = hardware.KNOWN["A100 PCIe 40 GB"], hardware.KNOWN["H100 PCIe"]
MI300X, V100_32 = hardware.KNOWN["MI300X"], hardware.KNOWN["V100 SXM2 32 GB"]


def one(family: Family, dtype: str = "", share: float = 0.5, grade: Grade = Grade.ANY, device: Peaks = H100) -> Known:
    return Known(device.name, family, dtype, grade, share, 2_000, 0.9, 1.2, 20, "by hand")


def took(row: Known, flops: float, moved: float, peaks: Peaks = H100) -> float:
    return float(row.took_ns(peaks, np.array([flops]), np.array([moved]))[0])


@pytest.mark.parametrize(
    ("inner", "element_bytes", "grade"),
    [
        ((768, 50304), 2, Grade.ALIGNED),
        ((768, 50257), 2, Grade.ODD),
        ((768, 50258), 2, Grade.EVEN),
        ((768, 50260), 2, Grade.EVEN),
        ((768, 50257), 4, Grade.EVEN),
        ((768, 50260), 4, Grade.ALIGNED),
        ((768, 50257), 1, Grade.ODD),
        ((768, 50264), 1, Grade.EVEN),
        ((768, 50272), 1, Grade.ALIGNED),
        ((0, 8), 2, Grade.ALIGNED),
        ((0, 0), 2, Grade.ALIGNED),
    ],
)
def test_how_sizes_suit_tensor_cores(inner: tuple[int, int], element_bytes: float, grade: Grade) -> None:
    assert grade_of(inner, element_bytes) == grade


def test_what_multiplies_takes_its_operations_or_its_bytes() -> None:
    product = one(Family.PRODUCT, "bf16")
    # 989 TFLOP/s are 989,000 operations a ns, and half of them are reached; 0.9 of 3,350 bytes a ns.
    assert took(product, 989e6, 1.0) == pytest.approx(2_000 + 2_000)
    assert took(product, 1.0, 3_015e6) == pytest.approx(1e6 + 2_000)
    assert took(product, 989e6, np.nan) == pytest.approx(4_000)  # Bytes are not known.
    assert np.isnan(took(product, 989e6, 1.0, V100_32))  # It has no bf16.

    # Fused attention in tf32 multiplies in fp32.
    assert took(one(Family.ATTENTION, "tf32"), 67e6, 1.0) == pytest.approx(2_000 + 2_000)


@pytest.mark.parametrize("family", [Family.CHAIN, Family.OPTIMIZER, Family.MEMORY])
def test_what_moves_data_takes_its_bytes(family: Family) -> None:
    assert took(one(family), 1e15, 3_350e3) == pytest.approx(2_000 + 2_000)
    assert [one(family).at(level) for level in range(3)] == [1.2, 1.0, 0.9]  # A cautious saving: the longest time.


def test_copies_take_their_bytes_over_pcie() -> None:
    assert took(one(Family.COPY), 0.0, 31.5e3) == pytest.approx(1_000 + 2_000)  # Half of 63 GB/s.
    assert np.isnan(took(one(Family.COPY), 0.0, 1e3, replace(H100, pcie_generation=None)))


def test_another_device_reaches_the_share_of_the_one_that_was_measured() -> None:
    measured, there = (known(device, Family.PRODUCT, "bf16", Grade.ALIGNED) for device in (H100, A100_40))
    assert measured is not None
    assert there == msgspec.structs.replace(
        measured, device=A100_40.name, least=measured.least * ELSEWHERE[0], most=measured.most * ELSEWHERE[1]
    )
    assert known(A100_40, Family.PRODUCT, "fp64", Grade.ALIGNED) is None


def test_a_type_that_was_not_measured_is_like_another() -> None:
    rows = {("H100 SXM", Family.PRODUCT, "bf16", Grade.ALIGNED): one(Family.PRODUCT, "bf16", grade=Grade.ALIGNED)}
    fp8 = known(H100, Family.PRODUCT, "fp8", Grade.ALIGNED, rows)
    # The best products of an H100 reach 1,403 of 1,979 TFLOP/s in fp8, and 794.5 of 989 in bf16.
    assert fp8 is not None
    assert fp8.share == pytest.approx(0.5 * (1403 / 1979) / (794.5 / 989))


def test_rows_of_a_device_come_first_and_tell_of_its_other_types() -> None:
    kinds = [("bf16", Grade.FORWARD, H100), ("fp32", Grade.FORWARD, H100), ("bf16", Grade.BACKWARD, H100)]
    shares = (0.6, 0.5, 0.4)
    measured = [
        one(Family.CONVOLUTION, dtype, share, grade, device)
        for (dtype, grade, device), share in zip(kinds, shares, strict=True)
    ]
    own = one(Family.CONVOLUTION, "bf16", 0.3, Grade.FORWARD, MI300X)
    rows = {(row.device, row.family, row.dtype, row.grade): row for row in (*measured, own)}
    assert known(MI300X, Family.CONVOLUTION, "bf16", Grade.FORWARD, rows) == own
    fp16 = known(MI300X, Family.CONVOLUTION, "fp16", Grade.FORWARD, rows)
    assert fp16 is not None
    assert (fp16.dtype, fp16.share, fp16.most) == ("fp16", 0.3, own.most)
    # In bf16 it reaches half of what an H100 does, so in fp32 as well; of the backward pass nothing is known.
    for device, grade, dtype, share in (
        (MI300X, Grade.FORWARD, "fp32", 0.25),
        (MI300X, Grade.BACKWARD, "bf16", 0.4),
        (A100_80, Grade.FORWARD, "fp32", 0.5),
        (H100_PCIE, Grade.FORWARD, "bf16", 0.6),
        (H100, Grade.FORWARD, "fp32", 0.5),
    ):
        found = known(device, Family.CONVOLUTION, dtype, grade, rows)
        assert found is not None
        assert found.share == pytest.approx(share)


def test_all_of_a_name_share_what_is_published() -> None:
    for device in (A100_80, A100_PCIE_40):
        found = known(device, Family.ATTENTION, "fp16", Grade.FORWARD)
        assert found is not None
        assert (found.share, found.source) == (0.6, "arXiv 2307.08691")
    assert own_row(H100_PCIE, Family.ATTENTION, "bf16", Grade.FORWARD) is None


def test_no_row_is_there_twice_and_all_have_sources() -> None:
    rows = list(table().values())
    assert all(row.source and (row.rows >= 4 or row.source.startswith("arXiv")) for row in rows)
    in_order = sorted(rows, key=lambda row: (row.device, row.family, row.dtype, row.grade))
    assert msgspec.json.encode(rows) == msgspec.json.encode(in_order)


@pytest.mark.parametrize(("device", "fixed_us"), [("MI300X", 4.5), ("A100", 1.5)])
def test_what_does_not_depend_on_bytes_is_known_of_a_device(device: str, fixed_us: float) -> None:
    facts = facts_of(f"""
        1 steps of 100
        device {device}
        cpu  aten::mul 0-1 shapes=[[1024,1024],[1024,1024]] types=["float","float"]
        gpu  pointwise 10-10.02 @0.5
    """)
    left = cost_book(facts).left([Recost(work_table(facts).ids, InPrecision("bf16"))], 1)
    assert left.share.tolist() == [pytest.approx((fixed_us + (20 - fixed_us) / 2) / 20)]


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
    assert (corrected.share, corrected.fixed_ns) == (pytest.approx(row().share / 1.2, rel=1e-3), row().fixed_ns)
    assert (corrected.least, corrected.most) == (pytest.approx(1 / 1.2, rel=1e-3), pytest.approx(1.5 / 1.2, rel=1e-3))


def test_the_range_is_never_narrower_than_calls_differ_anyway_and_other_kinds_stay_as_they_are_known() -> None:
    found = seen(products([1.2] * 3))
    corrected = found.known(H100, *KIND)
    assert corrected is not None
    assert (corrected.least, corrected.most) == (1 - SPREAD, 1 + SPREAD)
    for dtype, grade in (("bf16", Grade.ODD), ("fp32", Grade.ALIGNED)):
        assert found.known(H100, Family.PRODUCT, dtype, grade) == known(H100, Family.PRODUCT, dtype, grade)


@pytest.mark.parametrize(
    ("times", "size", "device"),
    [
        ([1.2] * (FEWEST - 1), 4096, "H100"),
        ([1.2] * 3, 1024, "H100"),  # 3 us: they tell little of a rate
        ([MOST + 0.2] * 3, 4096, "H100"),
        ([1.2] * 3, 4096, "1080"),  # its peaks are not known
    ],
)
def test_few_short_and_strange_products_tell_nothing(times: list[float], size: int, device: str) -> None:
    assert said_ns(4096) > LONG_NS > 1.2 * said_ns(1024)
    assert seen(products(times, size, device)) == Seen({})


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
