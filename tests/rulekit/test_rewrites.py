"""The entries of the catalogue of rewrites: what each finds and what it leaves alone."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from diagnose.contracts.finding import Finding
from diagnose.facts.core.base import Facts, Missing
from diagnose.rulekit.rewrites import Rewrite
from diagnose.rulekit.rewritten import Found
from diagnose.synthetic.reading import facts_of
from tests.rules import built_in

CPU = "1 steps of 100\n2 threads, 4 cores\n"
MS = 1_000_000


def entry(name: str) -> Rewrite:
    found = built_in(name).check.run.__self__  # type: ignore[attr-defined]
    assert isinstance(found, Rewrite)
    return found


def step(*items: str) -> Facts:
    """One step of 100 ms on a CPU."""
    return facts_of(CPU + "\n".join(f"cpu  {item}" for item in items))


def found(name: str, *items: str) -> list[Found]:
    return entry(name).found(step(*items))


def node(name: str, when: str, number: int) -> str:
    return f'"autograd::engine::evaluate_function: {name}Backward0" {when} sequence={number} "Fwd thread id"=1'


SUB = "aten::sub 0-10 shapes=[[256,1,64],[1,128,64],[]]"
MUL = "aten::mul 0-10 shapes=[[256,1,64],[128,64]]"
SQUARE = "aten::square 10-20 shapes=[[256,128,64]]"
SUM = "aten::sum 20-30 shapes=[[256,128,64],[],[],[]]"
NORM = "aten::norm 10-20 shapes=[[256,128,64],[],[]]"
ONE_HOT = "aten::one_hot 0-10 shapes=[[256],[]]"
CAST = "aten::to 10-20 shapes=[[256,8000],[],[]]"
LOOKUP = "aten::matmul 20-40 shapes=[[256,8000],[8000,128]]"
WHOLE = "shapes=[[32,10,64],[],[]]"


def cuts(count: int, begin: int = 1, number: int = 1, shapes: str = WHOLE) -> str:
    return f"aten::select {begin}-{begin}.5 x{count} every 1 {shapes} sequence={number}"


def cuts_back(count: int, begin: int = 50) -> str:
    """Nodes of 2 ms."""
    return node("Select", f"{begin}-{begin + 2} x{count} every 3", 1)


class Case(NamedTuple):
    rule: str
    items: tuple[str, ...]
    sizes: dict[str, object]
    """Some of those that are bound."""
    host_ms: float
    """That the ops take, with their backward pass."""


FOUND = [
    Case("broadcast_pairwise", (SUB, SQUARE, SUM), {"r": (256, 128), "d": 64}, 30),
    Case("broadcast_pairwise", (MUL, SUM), {"r": (256, 128), "d": 64}, 20),
    Case("broadcast_pairwise", (SUB, NORM), {}, 20),
    Case("broadcast_pairwise", (SUB, NORM.replace("norm", "linalg_vector_norm")), {}, 20),
    Case(
        "broadcast_pairwise",
        (
            *(f"{item} sequence={7 + k}" for k, item in enumerate((SUB, SQUARE, SUM))),
            *(node("Sum", "40-45", 9), node("Pow", "45-55", 8), node("Sub", "55-70", 7), node("Mm", "70-80", 6)),
        ),
        {},
        60,
    ),
    Case("one_hot_matmul", (ONE_HOT, CAST, LOOKUP), {"words": (256,), "classes": 8000}, 40),
    Case("one_hot_matmul", (ONE_HOT, LOOKUP.replace("20-40", "10-40")), {"classes": 8000}, 40),
    Case("gradients_of_slices", (cuts(8), cuts_back(8)), {"whole": (32, 10, 64)}, 16),
    Case(
        "gradients_of_slices",  # What works on pieces comes in between.
        (cuts(8), "aten::linear 1.6-1.9 x8 every 1 shapes=[[32,64],[64,64]]", cuts_back(8)),
        {},
        16,
    ),
]


@pytest.mark.parametrize("case", FOUND, ids=lambda one: one.rule)
def test_what_is_found(case: Case) -> None:
    (one,) = found(case.rule, *case.items)
    assert {name: one.first.bound[name] for name in case.sizes} == case.sizes
    assert one.work.host_ns == case.host_ms * MS


ALONE = [
    ("broadcast_pairwise", (SUB, "aten::abs 10-20 shapes=[[256,128,64]]", SUM)),
    ("broadcast_pairwise", (SUB, SUM.replace("20-30", "10-20"))),
    ("broadcast_pairwise", (MUL, SQUARE, SUM)),
    ("broadcast_pairwise", (MUL, NORM)),
    ("broadcast_pairwise", ("aten::add 0-10 shapes=[[256,1,64],[1,128,64],[]]", SQUARE, SUM)),
    ("broadcast_pairwise", (SUB, "aten::square 10-20 shapes=[[256,128,32]]", SUM)),  # another tensor in between
    *(
        ("broadcast_pairwise", (f"aten::sub 0-10 shapes={shapes}", SQUARE, SUM))
        for shapes in (
            "[[256,128,64],[1,128,64],[]]",  # one has the shape of the result
            "[[256,1,64],[1,4,64],[]]",  # the result is four times as large as the larger one
            "[[16,1,64],[1,16,64],[]]",  # 16,384 elements
            "[[512,1],[1,512],[]]",  # an outer product has nothing to sum over but its rows
        )
    ),
    ("one_hot_matmul", (ONE_HOT, CAST, "aten::mul 20-40 shapes=[[256,8000],[256,8000]]")),
    ("one_hot_matmul", (ONE_HOT, "aten::mm 10-20 shapes=[[64,64],[64,64]]")),  # of a layer
    # Noise on a kernel's diagonal; others of that shape were there before; as large as a weight may be; numbers.
    # No thinner than half; another matrix; nothing is solved; solved before; of something else for each.
    # Not thin; taken by itself; no layer takes it; a bias is added; of another size; the weight learns.
    ("gradients_of_slices", (cuts(7), cuts_back(7))),  # few
    # An op on the whole ends a row: four pieces before it and four after it, of two tensors.
    (
        "gradients_of_slices",
        (cuts(4), "aten::add 5-5.5 shapes=[[32,10,64],[32,10,64]]", cuts(4, 6, 2), cuts_back(8)),
    ),
]


@pytest.mark.parametrize(("rule", "items"), ALONE, ids=[f"{rule}-{k}" for k, (rule, _) in enumerate(ALONE)])
def test_what_is_left_alone(rule: str, items: tuple[str, ...]) -> None:
    assert found(rule, *items) == []


def test_rows_end_with_the_step() -> None:
    synthetic = f"2 steps of 100\n2 threads, 4 cores\ncpu  {cuts(4)} | {cuts_back(4)}"
    assert entry("gradients_of_slices").found(facts_of(synthetic)) == []


def test_no_gradient_goes_to_some_pieces() -> None:
    """Then nothing is filled for them."""
    (one,) = found("gradients_of_slices", cuts(8).replace("sequence=1", ""), cuts_back(8))
    assert one.work.host_ns == 0


def test_a_device_does_it_where_it_was_launched() -> None:
    facts = facts_of(
        f"""
        1 steps of 100
        cpu  {SUB.replace("0-10", "0-1")} | {SQUARE.replace("10-20", "1-2")} | {SUM.replace("20-30", "2-3")}
        gpu  pointwise 1-11 @0.5 | pointwise 11-18 @1.5 | reduce 18-22 @2.5 | sgemm 22-30 @4
        """
    )
    (one,) = entry("broadcast_pairwise").found(facts)
    assert (one.work.host_ns, one.work.device_ns, len(one.work.work_ids)) == (3 * MS, 21 * MS, 3)


def test_shapes_have_to_be_known() -> None:
    with pytest.raises(Missing, match="shapes"):
        found("one_hot_matmul", "aten::one_hot 0-40")


def test_lookups_of_all_lengths_are_one_finding() -> None:
    """As sequences of a text have: 10 ms each, the longest is shown."""
    items = [
        item.format(10 * k, 10 * k + 1, 10 * k + 10, 256 + k)
        for k in range(4)
        for item in ("aten::one_hot {0}-{1} shapes=[[{3}],[]]", "aten::matmul {1}-{2} shapes=[[{3},8000],[8000,128]]")
    ]
    (one,) = found("one_hot_matmul", *items)
    assert (one.times, one.work.host_ns) == (4, 40 * MS)
    (said,) = list(entry("one_hot_matmul").run(step(*items)))
    assert isinstance(said, Finding)
    assert "259 x 8,000, are made" in said.evidence[0].text
