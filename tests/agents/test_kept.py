"""The diagnoses that a server remembers."""

from __future__ import annotations

import pytest

from diagnose.agents.kept import MOST, Kept
from diagnose.agents.refusals import Refused
from tests.drawing import Drawing
from tests.reports.test_reports import of


def test_the_one_that_was_asked_for_longest_ago_is_forgotten() -> None:
    known, found = Kept(), of(Drawing().step(0, 0, 9).op("aten::mm", 1, 5))
    for number in range(MOST):
        assert known.keep(f"run{number}", found).handle == f"d{number + 1}"
    assert known.of("d1").path == "run0"
    known.keep("one more", found)
    assert known.of("d1").path == "run0"
    with pytest.raises(Refused, match='No diagnosis "d2" is kept'):
        known.of("d2")


def test_without_any_the_refusal_says_so() -> None:
    with pytest.raises(Refused, match=r"there are: none\). Call analyze again"):
        Kept().of("d1")
