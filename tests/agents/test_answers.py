"""Pages of answers: within the bound, each item once, and told how to go on."""

from __future__ import annotations

import re

import pytest

from diagnose.agents.answers import Item, page, whole
from diagnose.reports.quoting import MOST_BYTES, MOST_TOKENS, NOTE


def items(count: int, width: int) -> list[Item]:
    return [Item((f"{number}:{'x' * width}",), {"number": number, "text": "y" * width}) for number in range(count)]


def test_the_bound_is_that_of_four_thousand_tokens() -> None:
    assert MOST_BYTES <= 3 * MOST_TOKENS
    assert MOST_TOKENS == 4_000


@pytest.mark.parametrize("width", [0, 1, 10, 300, 2_000])
@pytest.mark.parametrize("count", [0, 1, 7, 900])
def test_pages_hold_each_item_once_in_order(count: int, width: int) -> None:
    start, seen = 0, list[int]()
    while start is not None:
        answer = page(["head"], {"a": 1}, "rows", iter(items(count, width)), start)
        assert answer.bytes <= MOST_BYTES
        assert answer.text.startswith(f"{NOTE}\nhead\n")
        told = [int(number) for number in re.findall(r"^(\d+):", answer.text, re.MULTILINE)]
        assert told == [row["number"] for row in answer.data["rows"]]
        seen += told
        start = answer.data["next"]
        assert (start is not None) == (f"start={start}" in answer.text)
    assert seen == list(range(count))


def test_behind_the_end_there_is_nothing() -> None:
    answer = page(["head"], {}, "rows", iter(items(3, 1)), 3)
    assert (answer.data["rows"], answer.data["next"]) == ([], None)
    assert "There is nothing from 3 on." in answer.text


def test_all_data_is_marked_as_untrusted() -> None:
    assert whole(["a"], {}).data == {"untrusted": NOTE}
    assert page([], {}, "rows", iter(()), 0).data["untrusted"] == NOTE
