"""The ledger of wasted work: one way of grouping ops, a finder a cause, and rules that are its entries."""

import pytest
from msgspec.structs import replace

from diagnose.contracts.finding import OutcomeKind
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.seen_ops import seen_ops
from diagnose.facts.values.known_values import duplicates
from diagnose.facts.values.wasted_work import FINDERS, Cause, wasted_work
from diagnose.pipeline import present
from diagnose.rulekit import engine, page
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site

STEPS = "3 steps of 100\n1 threads, 2 cores\n"
RULES = [one for one in map(page.read, page.files(page.built_in_rules())) if one.needs == page.LEDGER]


def text(values: str, lines: list[int]) -> str:
    """Ops of 8 ms, one every 10 ms, each on a line of its own function."""
    ops = [part.split()[0] for part in values.split(" | ")]
    spans = [
        f'{name} {10 * at}-{10 * at + 8} stack="t.py({line}): f{line}"'
        for at, (name, line) in enumerate(zip(ops, lines, strict=True))
    ]
    return f"{STEPS}values {values}\ncpu  {' | '.join(spans)}"


def synthetic(values: str, lines: list[int]) -> Facts:
    return facts_of(text(values, lines))


def test_every_cause_has_a_finder_and_a_rule() -> None:
    assert set(FINDERS) == set(Cause)
    assert len(RULES) == len(Cause)


@pytest.mark.parametrize("name", [one.id for one in RULES])
def test_what_cannot_be_looked_at_is_said_with_how_to_record_it(name: str) -> None:
    rule = engine.load_file(next(file for file in page.files(page.built_in_rules()) if file.stem == name))
    (outcome,) = present(facts_of(f"{STEPS}cpu  aten::mm 0-10 | Optimizer.step#SGD.step 11-12"), [rule]).outcomes
    assert outcome.outcome is OutcomeKind.CANNOT_TELL
    assert outcome.how_to_record_it.startswith("Record")


def test_each_cause_lacks_what_it_needs_itself() -> None:
    rank = facts_of(f"{STEPS}values aten::mm | aten::mm as 0\ncpu  aten::mm 0-8 | aten::mm 10-18").rank
    assert rank.values is not None
    ledger = wasted_work(Facts(replace(rank, values=replace(rank.values, sparse=None, looked_up=None))))
    assert [one.wasted_ns for one in ledger.of(Cause.DUPLICATE)] == [8_000_000]
    for cause in (Cause.FROZEN_ROWS, Cause.ZEROS_IN_OPERAND):
        with pytest.raises(Missing, match="this version"):
            ledger.of(cause)


def test_rows_of_one_line_are_one_entry() -> None:
    """Line 3 repeats two functions; each had been computed elsewhere, the first of them on line 1."""
    facts = synthetic("aten::mm | aten::exp | aten::mm as 0 | aten::sum | aten::exp as 1", [1, 2, 3, 4, 3])
    (found,) = duplicates(facts)
    assert (found.ops, found.times, found.wasted_ns) == (("aten::mm", "aten::exp"), 2, 16_000_000)
    assert (found.site, found.other_site) == (Site("t.py", 3, "f3"), Site("t.py", 1, "f1"))


def test_what_repeats_in_an_optimizer_s_step_is_the_optimizer_s() -> None:
    drawn = text("aten::add_ | aten::add_ as 0", [1, 2])
    assert [len(duplicates(facts_of(f"{drawn}{more}"))) for more in ("", "\ncpu  optimizer 9-19")] == [1, 0]


def test_lines_are_told_apart() -> None:
    facts = synthetic("aten::mm | aten::mm as 0 | aten::sum | aten::mm as 0", [1, 2, 3, 4])
    sites = [Site("t.py", 2, "f2"), Site("t.py", 4, "f4")]
    assert [(one.times, one.site) for one in duplicates(facts)] == [(1, site) for site in sites]


@pytest.mark.parametrize(
    ("end", "first"),
    [
        ("", [-1, -1, 0, 1]),
        (" | aten::mm", [-1, -1, 0, 1, -1]),
        # It is needed for what is written to it.
        (" | aten::add_ takes 2", [-1, -1, -1, 1, -1]),
    ],
)
def test_what_takes_the_same_had_been_given_the_same(end: str, first: list[int]) -> None:
    """The recorder compared the products, and not the triangles that they are made of."""
    values = f"aten::tril | aten::mm takes 0 | aten::tril | aten::mm as 1 takes 2{end}"
    assert seen_ops(synthetic(values, list(range(1, 2 + values.count("|"))))).first.tolist() == first


def test_other_ops_before_what_is_the_same_are_not() -> None:
    values = "aten::tril | aten::mm takes 0 | aten::triu | aten::mm as 1 takes 2"
    assert seen_ops(synthetic(values, [1, 2, 3, 4])).first.tolist() == [-1, -1, -1, 1]


def test_an_entry_says_what_how_often_where_and_how_long() -> None:
    rule = engine.load_file(page.built_in_rules() / "redundancy" / "duplicate_compute.py")
    looked = "aten::mm | aten::exp takes 0 | aten::mm as 0 | aten::exp as 1 | aten::mm as 0 | aten::exp as 1"
    (found,) = present(facts_of(text(looked, [1, 1, 5, 5, 5, 5])), [rule]).findings
    assert found.evidence[0].text == (
        "mm, exp repeat twice a computation at line 1 (f1) on the same values: 32.0 ms per step."
    )
    assert found.site == Site("t.py", 5, "f5")
