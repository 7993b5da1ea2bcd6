"""What is known of devices is what fits, and the published errors are what is said today."""

from pathlib import Path

import pytest

from benchmarks import known_costs
from benchmarks.fitting import FEWEST_RECORDED, fitted, held_out, of_recordings, recorded
from benchmarks.recorded_ops import MEMORY, Recorded, Timed, ops_of
from diagnose.costs.known import ELSEWHERE, KNOWN, Family, Grade, known
from diagnose.facts.core.base import Facts
from diagnose.synthetic.reading import facts_of
from diagnose.trace import hardware
from diagnose.trace.hardware import H100

A100_40 = hardware.KNOWN["A100 SXM 40 GB"]
PRODUCT = (Family.PRODUCT, "bf16", Grade.ALIGNED)
PEAK = 312e3  # Operations a ns of an A100.


@pytest.mark.slow
def test_what_is_known_is_what_fits_the_rates() -> None:
    assert known_costs.encoded(known_costs.known_of(None)) == KNOWN.read_bytes()


@pytest.mark.exhaustive
def test_what_is_known_and_published_is_what_recordings_tell(corpus: Path) -> None:
    ops = known_costs.read(corpus)
    assert known_costs.encoded(known_costs.known_of([op for op, _ in ops])) == KNOWN.read_bytes()
    assert known_costs.judged(ops) == known_costs.published()


def ops(source: str, share: float, many: int, fixed_ns: float = 4_000) -> list[Recorded]:
    """Products on an A100 that reach a share of its peak."""
    sizes = [1e10 * (1 + place) for place in range(many)]
    times = [size / (PEAK * share) + fixed_ns for size in sizes]
    return [
        Recorded(source, A100_40, PRODUCT, "aten::mm", (1, 1, 1), Timed(size, 1.0, took))
        for size, took in zip(sizes, times, strict=True)
    ]


def test_a_fit_finds_the_share_and_the_fixed_time() -> None:
    found = fitted(PRODUCT, [one.timed for one in ops("a", 0.4, 12)], A100_40, "a")
    assert (found.share, found.fixed_ns, found.least, found.most) == (0.4, 4_000, 1.0, 1.0)
    assert (found.device, found.rows, found.source) == (A100_40.name, 12, "a")


def test_what_recordings_tell_has_a_wider_range() -> None:
    found = recorded([*ops("b", 0.4, 6), *ops("a", 0.4, 6)])
    assert (found.share, found.source, (found.least, found.most)) == (0.4, "a, b", ELSEWHERE)


def test_recordings_are_foretold_by_the_others() -> None:
    fits = held_out([*ops("a", 0.2, 6), *ops("b", 0.4, 6), *ops("c", 0.4, 2)])
    assert (fits["a"].share, fits["b"].share) == (0.4, 0.2)
    assert held_out([*ops("a", 0.2, 6), *ops("b", 0.4, 3)]).keys() == {"b"}  # Three are too few to tell.


def test_rows_of_recordings_foretell_others_better_than_an_h100_does() -> None:
    half = [*ops("a", 0.35, 6), *ops("b", 0.4, FEWEST_RECORDED)]
    (found,) = of_recordings(half)
    assert found == recorded(half)
    measured = known(H100, *PRODUCT)
    as_there = [*ops("a", measured.share, 6), *ops("b", measured.share + 0.1, FEWEST_RECORDED)]
    assert of_recordings(as_there) == []  # An H100's share says the first six without error.
    assert of_recordings(ops("a", 0.35, FEWEST_RECORDED)) == []  # Nothing to test it with.
    assert of_recordings([*ops("a", 0.35, 6), *ops("b", 0.4, FEWEST_RECORDED - 1)]) == []  # The same ops, and too few.


def recording(cpu: str, gpu: str) -> Facts:
    return facts_of("\n".join(["1 steps of 100", *(f"cpu {line}" for line in cpu.splitlines()), *gpu.splitlines()]))


def test_an_op_takes_the_median_of_its_calls_that_nothing_overlaps() -> None:
    mm = 'aten::mm {}-{} shapes=[[4096,4096],[4096,4096]] types=["c10::BFloat16","c10::BFloat16"]'
    (found,) = ops_of(
        "a",
        recording(
            "\n".join(mm.format(at, at + 0.5) for at in range(4)),
            "gpu bf16_gemm 10-11 @0.1 | bf16_gemm 20-23 @1.1 | bf16_gemm 30-32 @2.1 | bf16_gemm 40-49 @3.1\n"
            "gpu 20 allreduce 45-46 @3.2",
        ),
    )
    assert (found.kind, found.name, found.dims) == (PRODUCT, "aten::mm", (4096, 4096, 4096))
    assert found.timed == Timed(2 * 4096**3, 2 * 3 * 4096**2, 2e6)
    assert len(found.rows) == 4  # All of them, as the others are to correct what is said.


@pytest.mark.parametrize(
    ("op", "shapes", "types", "moved"),
    [
        ("mul", "[[1024,1024],[1024,1024]]", '["float","float"]', 3 * 4 * 2**20),
        ("mul", "[[1024,1024],[]]", '["float","double"]', 2 * 4 * 2**20),  # a number
        ("add_", "[[1024,1024],[1024,1024]]", '["float","c10::BFloat16"]', (4 + 2 + 4) * 2**20),
        ("copy_", "[[1024,1024],[1024,1024]]", '["float","c10::BFloat16"]', (4 + 2) * 2**20),
        ("add", "[[1024,1024],[1024,1024]]", '["float","c10::BFloat16"]', (4 + 2 + 4) * 2**20),
        ("relu", "[[1024,1024]]", '["c10::BFloat16"]', 2 * 2 * 2**20),
        ("mul", "[[1024,1024],[1,1024]]", '["float","float"]', None),  # broadcast
        ("sum", "[[1024,1024]]", '["float"]', None),
        ("copy_", "[[1024,1024]]", '["float"]', None),  # from a number on the host
        ("mul", "[[1024,1024],[1024,1024]]", '["float","unknown"]', None),
    ],
)
def test_what_a_memory_bound_op_moves(op: str, shapes: str, types: str, moved: int | None) -> None:
    facts = recording(f"aten::{op} 0-1 shapes={shapes} types={types}", "gpu pointwise 10-10.02 @0.5")
    found = [(one.kind, one.timed) for one in ops_of("a", facts)]
    assert found == ([] if moved is None else [(MEMORY, Timed(0.0, moved, 20_000.0))])
