"""Answers about two recordings."""

from __future__ import annotations

from diagnose.agents.answers import Answer
from diagnose.agents.comparisons import compared
from diagnose.comparing.compare import compare
from diagnose.contracts.comparison import Comparison
from diagnose.reports.comparison import headline
from diagnose.reports.quoting import MOST_BYTES, NOTE
from diagnose.trace.frames import Site
from tests.agents.samples import EVIL, ORDER, outside_of_quotes
from tests.reports.test_comparison import SAME, SLOWER, casts
from tests.runs import MS


def pages(found: Comparison) -> list[Answer]:
    """All of them."""
    made, start = list[Answer](), 0
    while start is not None:
        made.append(compared(found, start))
        start = made[-1].data["next"]
    return made


def test_it_begins_with_the_verdict_and_its_cause() -> None:
    text, data = compared(SLOWER, 0).text, compared(SLOWER, 0).data
    assert text.splitlines()[:2] == [NOTE, headline(SLOWER)]
    assert (data["verdict"], data["before_ns"], data["after_ns"]) == ("slower", 102 * MS, 150 * MS)
    assert data["difference_ns"]["likely"] == 48 * MS
    (cause,) = [row["text"] for row in data["rows"] if row["kind"] == "cause"]
    assert cause.startswith("+48.0 ms: aten::copy_ (compute: copy kernels), more calls: 2 -> 50 a step")


def test_parts_add_up_and_changes_have_their_line() -> None:
    rows = [row for page in pages(SLOWER) for row in page.data["rows"]]
    assert sum(row["ns"] for row in rows if row["kind"] == "part") == 48 * MS
    (change,) = [row for row in rows if row["kind"] == "change"]
    assert (change["what"], change["before_calls"], change["after_calls"]) == ("aten::copy_", 2.0, 50.0)
    assert (change["ns"], change["at"]) == (48 * MS, "src/train.py:88 (main)")
    assert {"kind": "Settings that differ", "text": "version torch: 2.10 -> 2.11."} in rows


def test_without_a_difference_there_is_no_cause() -> None:
    rows = compared(SAME, 0).data["rows"]
    assert compared(SAME, 0).data["verdict"] == "same"
    assert [row for row in rows if row["kind"] == "cause"] == []


def test_orders_in_names_stay_quoted_and_bounded() -> None:
    found = compare(casts(2), casts(50, Site(EVIL, 1, EVIL), EVIL, EVIL))
    made = pages(found)
    assert ORDER in made[0].text
    for one in made:
        assert one.bytes <= MOST_BYTES
        assert ORDER not in outside_of_quotes(one.text)
        assert all(line.isprintable() for line in one.text.splitlines())
