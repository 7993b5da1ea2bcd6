"""Numbers as people read them."""

import pytest

from diagnose.trace import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (14_660, "14.7 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (222_390_791, "222 ms"),
        (1_240_000_000, "1.24 s"),
        (75_000_000_000, "75.0 s"),
        (4_000_000_000_000, "4,000 s"),
    ],
)
def test_durations_have_three_digits(ns: int, text: str) -> None:
    assert units.duration(ns) == text


def test_shares_never_show_zero_for_something() -> None:
    assert [units.share(part, 1000) for part in (0, 0.4, 0.5, 173, 1000)] == [
        "0.0 %",
        "<0.1 %",
        "0.1 %",
        "17.3 %",
        "100.0 %",
    ]
    assert units.share(1, 0) == "-"


def test_sizes_are_decimal() -> None:
    assert [units.size(count) for count in (0, 512, 46_700, 19_267_840, 2.63e9, 4e12)] == [
        "0 B",
        "512 B",
        "46.7 kB",
        "19.3 MB",
        "2.63 GB",
        "4.00 TB",
    ]


def test_bars_grow_by_eighths() -> None:
    assert units.bar(0.5, 1, 4) == "██"
    assert units.bar(0.28125, 1, 4) == "█▏"
    assert units.bar(0, 1, 4) == ""
    assert units.bar(1, 0, 4) == ""


def test_clipping_keeps_the_width() -> None:
    assert (units.clipped("abcdef", 4), units.clipped("abcd", 4)) == ("abc…", "abcd")
    assert (units.clipped_left("/a/b/c.py", 5), units.clipped_left("c.py", 5)) == ("…c.py", "c.py")


def test_counts_have_a_decimal_only_if_they_need_one() -> None:
    assert [units.number(count) for count in (0, 1325, 1.6, 1324.75, 0.05, 0.04)] == [
        "0",
        "1,325",
        "1.6",
        "1,324.8",
        "0.1",
        "<0.1",
    ]


def test_ranks_that_follow_each_other_are_one() -> None:
    assert [units.ranks(some) for some in ([3], [3, 0, 1, 2], [8, 0, 1], range(10_000))] == [
        *("rank 3", "ranks 0-3", "ranks 0-1, 8", "ranks 0-9999")
    ]
