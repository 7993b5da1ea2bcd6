"""Sums over pairs of rows that are computed by broadcasting."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.shapes.broadcasts import PairSums, pair_sums
from diagnose.synthetic.reading import facts_of

SUB = "aten::sub 0-10 shapes=[[256,1,64],[1,128,64],[]]"
MUL = "aten::mul 0-10 shapes=[[256,1,64],[128,64]]"
SQUARE = "aten::square 10-20 shapes=[[256,128,64]]"
SUM = "aten::sum 20-30 shapes=[[256,128,64],[],[],[]]"


def of(*items: str) -> tuple[PairSums, ...]:
    return pair_sums(facts_of(f"1 steps of 100\n2 threads, 4 cores\ncpu  {' | '.join(items)}"))


def test_squares_of_differences() -> None:
    (found,) = of(SUB, SQUARE, SUM, "aten::mm 30-40 shapes=[[256,128],[128,64]]")
    assert (found.differences, found.shape) == (True, (256, 128, 64))
    assert (len(found.work.ids), found.work.host_ns, found.work.device_ns) == (3, 30_000_000, 0)


def test_products() -> None:
    (found,) = of(MUL, SUM)
    assert (found.differences, found.shape, found.work.host_ns) == (False, (256, 128, 64), 20_000_000)


@pytest.mark.parametrize("name", ["aten::norm", "aten::linalg_vector_norm"])
def test_lengths_of_differences(name: str) -> None:
    (found,) = of(SUB, f"{name} 10-20 shapes=[[256,128,64],[],[]]")
    assert (found.differences, found.work.host_ns) == (True, 20_000_000)


def test_what_matrices_cannot_do() -> None:
    assert of(SUB, "aten::abs 10-20 shapes=[[256,128,64]]", SUM) == ()
    assert of(SUB, SUM.replace("20-30", "10-20")) == ()
    assert of(MUL, SQUARE, SUM) == ()
    assert of(MUL, "aten::norm 10-20 shapes=[[256,128,64],[],[]]") == ()
    assert of("aten::add 0-10 shapes=[[256,1,64],[1,128,64],[]]", SQUARE, SUM) == ()


def test_another_tensor_in_between_is_another_computation() -> None:
    assert of(SUB, "aten::square 10-20 shapes=[[256,128,32]]", SUM) == ()


@pytest.mark.parametrize(
    "shapes",
    [
        "[[256,128,64],[1,128,64],[]]",  # one has the shape of the result
        "[[256,1,64],[1,4,64],[]]",  # the result is four times as large as the larger one
        "[[16,1,64],[1,16,64],[]]",  # 16,384 elements
        "[[512,1],[1,512],[]]",  # an outer product has nothing to sum over but its rows
    ],
)
def test_little_is_blown_up(shapes: str) -> None:
    assert of(f"aten::sub 0-10 shapes={shapes}", SQUARE, SUM) == ()


def test_the_backward_counts() -> None:
    back = '"autograd::engine::evaluate_function: {}Backward0" {} sequence={} "Fwd thread id"=1'
    forth = [f"{item} sequence={7 + k}" for k, item in enumerate((SUB, SQUARE, SUM))]
    nodes = [back.format(*given) for given in (("Sum", "40-45", 9), ("Pow", "45-55", 8), ("Sub", "55-70", 7))]
    other = back.format("Mm", "70-80", 6)
    (found,) = of(*forth, *nodes, other)
    assert (len(found.work.ids), found.work.host_ns) == (6, 60_000_000)


def test_a_device_does_it_where_it_was_launched() -> None:
    (found,) = pair_sums(
        facts_of(
            f"""
            1 steps of 100
            cpu  {SUB.replace("0-10", "0-1")} | {SQUARE.replace("10-20", "1-2")} | {SUM.replace("20-30", "2-3")}
            gpu  pointwise 1-11 @0.5 | pointwise 11-18 @1.5 | reduce 18-22 @2.5 | sgemm 22-30 @4
            """
        )
    )
    assert (found.work.host_ns, found.work.device_ns, len(found.work.work_ids)) == (3_000_000, 21_000_000, 3)


def test_without_shapes_nothing_is_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        of("aten::sub 0-10")
