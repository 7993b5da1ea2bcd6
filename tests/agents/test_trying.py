"""Answers about trials and patches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from diagnose.agents.refusals import Refused
from diagnose.agents.trying import MOST_LINE, patched, tried
from diagnose.reports.quoting import MOST_BYTES, NOTE
from tests.agents.samples import EVIL, ORDER, outside_of_quotes
from tests.reports.test_trials import BOTH, FUSED, VOID, WORKERS, report

DIFF = (
    "diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n"
    ' import torch\n-loader = DataLoader("a\x0cb")\n+loader = DataLoader("a\x0cb", num_workers=1)\n'
)


def test_trials_are_told_with_their_factors() -> None:
    """80 ms by 1.6 is 50 ms."""
    answer = tried("runs/first", report(WORKERS, FUSED, together=BOTH), 0)
    assert "80.0 ms -> 50.0 ms a step (1.60x, 1.40 to 1.80; predicted 1.40x)." in answer.text
    assert '\n   measured "1.25x, 1.20 to 1.31, 3 pairs of 30 steps"\n' in answer.text
    assert answer.data["keep"] == ["dataloader_starvation", "unfused_optimizer"]
    rows = answer.data["trials"]
    assert [row.get("verdict") for row in rows] == ["keep", "keep", "keep", None]
    assert rows[0]["measured"] == {"low": 1.2, "likely": 1.25, "high": 1.31}
    assert rows[1]["predicted"] is None
    assert rows[3] == {"finding": 3, "rule": "scalar_syncs", "not_tried": "it needs an edit of the script"}


def test_what_was_not_measured_is_null() -> None:
    (row, _) = tried("runs/first", report(VOID), 0).data["trials"]
    assert (row["measured"], row["losses"], row["verdict"]) == (None, None, "not_injected")


def test_orders_in_trials_stay_quoted() -> None:
    evil = replace(WORKERS, injected=EVIL, fix=EVIL, why=EVIL)
    answer = tried(EVIL, report(*[evil] * 40, notes=(EVIL,)), 0)
    assert answer.bytes <= MOST_BYTES
    assert answer.data["next"] is not None
    assert answer.text.startswith(NOTE)
    assert ORDER in answer.text
    assert ORDER not in outside_of_quotes(answer.text)


def test_a_diff_keeps_its_lines() -> None:
    answer = patched("runs/first", DIFF, "1. rule\n   fix  Do it.\n\nThe diff has 1 fix in 1 file.\n", False, 0)
    lines = [line for line in answer.data["lines"] if isinstance(line, str)]
    assert "\n".join([*lines, ""]) == DIFF
    assert answer.data["lines"][-1] == {"note": "The diff has 1 fix in 1 file."}
    assert "Nothing is changed yet. The unified diff has 1 file, 7 lines." in answer.text
    assert '\n|+loader = DataLoader("a\x0cb", num_workers=1)\nnote "1. rule"\nnote "fix Do it."\n' in answer.text
    assert "The files are changed. The unified diff has" in patched("x", DIFF, "", True, 0).text


def test_without_a_fix_the_notes_say_why() -> None:
    answer = patched("x", "", "There is no fix to make.\n", False, 0)
    assert "No fix is in the diff." in answer.text
    assert answer.data["lines"] == [{"note": "There is no fix to make."}]


def test_a_long_diff_has_pages_and_a_long_line_is_not_cut() -> None:
    long = DIFF + "".join(f"+line {number} {'x' * 100}\n" for number in range(300))
    start, lines = 0, list[str]()
    while start is not None:
        answer = patched("x", long, "", False, start)
        assert answer.bytes <= MOST_BYTES
        lines += answer.data["lines"]
        start = answer.data["next"]
    assert "\n".join([*lines, ""]) == long
    with pytest.raises(Refused, match=r'too long for here\. Run: diagnose patch "x"'):
        patched("x", DIFF + "+" + "x" * MOST_LINE + "\n", "", False, 0)
