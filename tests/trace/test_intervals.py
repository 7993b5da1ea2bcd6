"""Interval algebra against sets of moments."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace import intervals
from diagnose.trace.intervals import Intervals

pieces = st.lists(st.tuples(st.integers(-20, 40), st.integers(0, 12)), max_size=12).map(
    lambda pairs: intervals.of([start for start, _ in pairs], [start + length for start, length in pairs])
)
normal = pieces.map(intervals.union)


def moments(some: Intervals) -> set[int]:
    return {moment for start, end in zip(*some, strict=True) for moment in range(start, end)}


def is_normal(some: Intervals) -> bool:
    return bool((some.ends > some.starts).all() and (some.starts[1:] > some.ends[:-1]).all())


@given(pieces)
def test_union_covers_the_same_moments_once(some: Intervals) -> None:
    found = intervals.union(some)
    assert is_normal(found)
    assert moments(found) == moments(some)
    assert found.total == len(moments(some))


@given(normal, normal)
def test_intersection_difference_and_merge_are_those_of_sets(a: Intervals, b: Intervals) -> None:
    for found, expected in (
        (intervals.intersect(a, b), moments(a) & moments(b)),
        (intervals.subtract(a, b), moments(a) - moments(b)),
        (intervals.merge(a, b), moments(a) | moments(b)),
    ):
        assert moments(found) == expected
        assert is_normal(found)


@given(normal, st.integers(-25, 45), st.integers(-25, 45))
def test_clip_and_gaps_share_out_a_window(a: Intervals, start: int, end: int) -> None:
    window = set(range(start, end))
    assert moments(intervals.clip(a, start, end)) == moments(a) & window
    assert moments(intervals.gaps(a, start, end)) == window - moments(a)
    assert is_normal(intervals.gaps(a, start, end))


@given(pieces, normal)
def test_covered_counts_the_moments_of_each_piece(some: Intervals, a: Intervals) -> None:
    expected = [len(set(range(start, end)) & moments(a)) for start, end in zip(*some, strict=True)]
    assert intervals.covered(some, a).tolist() == expected


def test_touching_intervals_become_one_and_empty_ones_vanish() -> None:
    found = intervals.union(intervals.of([5, 0, 3, 9], [8, 3, 5, 9]))
    assert (found.starts.tolist(), found.ends.tolist()) == ([0], [8])


def test_times_of_years_in_nanoseconds_do_not_overflow() -> None:
    year = 365 * 86_400 * 10**9
    found = intervals.gaps(intervals.of([year], [2 * year]), 0, 4 * year)
    assert found.total == 3 * year
    assert np.issubdtype(found.starts.dtype, np.int64)


def test_the_union_of_some_pieces() -> None:
    pieces = intervals.Intervals(np.array([0, 5, 20]), np.array([10, 12, 30]))
    for chosen in (np.array([0, 1]), np.array([True, True, False])):
        found = intervals.union_of(pieces, chosen)
        assert (found.starts.tolist(), found.ends.tolist()) == ([0], [12])


@given(normal, st.lists(st.integers(-25, 45)))
def test_cut_pieces_are_the_same_moments_in_order_split_at_every_moment_within(a: Intervals, at: list[int]) -> None:
    found, owner = intervals.cut(a, np.array(at, dtype=np.int64))
    assert moments(found) == moments(a)
    assert found.total == a.total
    assert (found.ends > found.starts).all()
    within = {moment for moment in at if any(start < moment < end for start, end in zip(*a, strict=True))}
    assert set(found.starts.tolist()) == set(a.starts.tolist()) | within
    assert found.size == a.size + len(within)
    assert (a.starts[owner] <= found.starts).all()
    assert (found.ends <= a.ends[owner]).all()


@given(normal, st.lists(st.integers(-25, 45)))
def test_a_set_holds_its_moments(a: Intervals, at: list[int]) -> None:
    assert intervals.holds(a, np.array(at, dtype=np.int64)).tolist() == [moment in moments(a) for moment in at]
