"""Recorded times as integer nanoseconds; times that cannot be true."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.source import clock
from diagnose.source.base import Damage

DAY_NS = 86_400_000_000_000


def converted(
    ts: list[Any], dur: list[float] | None = None, base: int = 0, exact: bool = False
) -> tuple[clock.Times, Damage]:
    damage = Damage()
    stamps = np.array(ts, dtype=np.int64 if exact else np.float64)
    durations = np.array(dur or [1.0] * len(ts))
    return clock.to_ns(stamps, durations, np.zeros(len(ts), dtype=bool), base, damage), damage


@given(
    st.lists(st.integers(0, DAY_NS // 4), min_size=1, max_size=30),
    st.integers(0, 7_889_238 * 10**9),
    st.integers(0, 1 << 61),
)
def test_relative_times_are_exact(offsets: list[int], start: int, base: int) -> None:
    """As Kineto writes them since 2024-05: us with three decimals from the start of the quarter, in a double."""
    stamps_ns = [start + offset for offset in offsets]
    found, damage = converted([float(Decimal(stamp) / 1000) for stamp in stamps_ns], base=base)
    assert found.start_ns.tolist() == [stamp - min(stamps_ns) for stamp in stamps_ns]
    assert found.zero_unix_ns == base + min(stamps_ns)
    assert found.keep.all()
    assert damage == Damage()


@given(st.lists(st.integers(0, DAY_NS // 4), min_size=1, max_size=30))
def test_absolute_times_as_integers_are_exact(offsets: list[int]) -> None:
    stamps = [1_712_170_274_000_000_123 + offset for offset in offsets]
    found, _ = converted(stamps, exact=True)
    assert found.start_ns.tolist() == [stamp - min(stamps) for stamp in stamps]
    assert found.zero_unix_ns == min(stamps)


@given(st.lists(st.integers(0, DAY_NS - 1), min_size=1, max_size=30))
def test_durations_are_exact(durations: list[int]) -> None:
    found, _ = converted([5.0] * len(durations), [float(Decimal(duration) / 1000) for duration in durations])
    assert found.dur_ns.tolist() == durations


@pytest.mark.parametrize(
    ("ts", "dur", "resolution"),
    [([1, 2], [3, 4], 1000), ([1, 2.001], [3, 4], 1), ([1, 2], [3, 4.5], 1), ([7.25, 8.25], [1, 1], 1)],
)
def test_the_resolution_is_what_the_times_show(ts: list[float], dur: list[float], resolution: int) -> None:
    assert converted(ts, dur)[0].resolution_ns == resolution


def test_what_cannot_be_a_time_is_left_out_and_counted() -> None:
    nan, inf = float("nan"), float("inf")
    found, damage = converted([10, nan, inf, -inf, 1e300, 12, 20 + 86_400e6, -(10**15), 11], [1] * 9)
    assert found.keep.tolist() == [True, False, False, False, False, True, False, False, True]
    assert found.start_ns[found.keep].tolist() == [0, 2000, 1000]
    assert (damage.without_time, damage.implausible_times) == (4, 2)


def test_what_is_no_duration_is_none() -> None:
    found, damage = converted([1, 2, 3, 4, 5], [7, -1, float("nan"), 86_400e6, 1e18])
    assert found.keep.all()
    assert found.dur_ns.tolist() == [7000, 0, 0, DAY_NS, 2 * DAY_NS]  # long enough to be cut
    assert damage.negative_durations == 2


def test_no_time_at_all_keeps_nothing() -> None:
    assert not converted([float("nan")] * 3)[0].keep.any()
    assert not converted([-1, -1], exact=True)[0].keep.any()


def table(rows: list[tuple[int, int, int, int, int, int, int]]) -> dict[str, Any]:
    names = ("start_ns", "dur_ns", "kind", "name", "track", "correlation", "external_id")
    return {name: np.array([row[k] for row in rows], dtype=np.int64) for k, name in enumerate(names)}


row = st.tuples(*(st.integers(0, 2) for _ in range(5)), st.integers(-1, 1), st.integers(-1, 1))


@given(st.lists(row, max_size=25), st.data())
def test_order_and_repeats_against_the_definition(rows: list[Any], data: st.DataObject) -> None:
    """By start, then as in the file; of identified events that are equal in all, the first."""
    keep = np.array([data.draw(st.booleans()) for _ in rows], dtype=bool)
    expected, seen = [], set()
    for k in sorted(np.flatnonzero(keep).tolist(), key=lambda k: rows[k][0]):
        if max(rows[k][5:]) > 0 and rows[k] in seen:
            continue
        seen.add(rows[k])
        expected.append(k)
    damage = Damage()
    assert clock.order(table(rows), keep, damage).tolist() == expected
    assert damage.duplicates == int(keep.sum()) - len(expected)


def test_what_cannot_last_so_long_ends_where_the_next_on_its_row_begins() -> None:
    second, hour = 1_000_000_000, 3_600_000_000_000
    rows = [
        (0, 10 + second, 3, 0, 7, 1, 1),  # overlaps the next on stream 7 by exactly a second
        (5, 20 * second, 3, 0, 8, 2, 1),  # nothing follows on stream 8
        (10, 11 + second, 3, 0, 7, 3, 1),  # ends over a second behind the start of the next
        (10, 10 * second, 1, 0, 7, 4, 1),  # on the host calls contain others
        (10, 5, 3, 0, 7, 5, 1),
        (20, hour, 1, 0, 9, 6, 1),  # may hang so long after the last event
        (30, 11 + hour, 1, 0, 9, 7, 1),  # may not
        (40, 5, 1, 0, 9, 8, 1),
        (40, 2 * DAY_NS, 3, 0, 9, 9, 1),  # nothing follows on the device
        (0, 2 * DAY_NS, 1, 0, 9, 10, 1),  # not kept
    ]
    raw, damage = table(rows), Damage()
    clock.clip(raw, np.arange(len(rows)) < 9, raw["kind"] == 3, damage)
    assert raw["dur_ns"].tolist() == [10 + second, 20 * second, 0, 10 * second, 5, hour, 10, 5, 0, 2 * DAY_NS]
    assert damage.clipped == 3


@pytest.mark.parametrize(
    ("ts", "lost"),
    [
        ([0, 5_000_000, 5_000_900], 1),
        ([0, 900, 1800], 0),  # what counts time from its own start
        ([0, 1_500_000, 9_000_000], 0),  # nearer to the rest than the rest is long
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_start_of_zero_far_before_the_rest_was_never_set(ts: list[int], lost: int, exact: bool) -> None:
    found, damage = converted([1000 * one for one in ts] if exact else ts, exact=exact)
    assert (damage.without_time, found.keep.tolist()) == (lost, [not lost, True, True])
