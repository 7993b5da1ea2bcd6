"""Interval algebra against sets of moments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import astuple, replace

from diagnose.facts.communication.collective_sequence import collective_sequence
from diagnose.synthetic.reading import facts_of
from diagnose.trace import intervals
from diagnose.trace.intervals import Intervals
from diagnose.trace.job import CollectiveSequence, ProcessGroup, packed, unpacked
from diagnose.trace.varying import varying_shapes

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


@pytest.mark.parametrize(
    ("drawing", "shapes"),
    [
        ("cpu  aten::mm 0-1 shapes=[[8,4],[4,4]]", ()),  # No steps are marked.
        ("2 steps of 10\ncpu  aten::mm 0-1 shapes=[[8,4],[4,4]]", ()),
        (
            "2 steps of 10\ncpu  aten::mm 0-1 shapes=[[8,4],[4,4]] in 0 | aten::mm 0-1 shapes=[[9,4],[4,4]] in 1",
            (("[[8, 4], [4, 4]]", "[[9, 4], [4, 4]]"),),
        ),
    ],
)
def test_what_differs_in_each_step(drawing: str, shapes: tuple[tuple[str, ...], ...]) -> None:
    rank = facts_of(drawing).rank
    found = varying_shapes(rank.spans, rank.ops, tuple(step.number for step in rank.steps))
    assert tuple(tuple(text.replace(" ", "") for text in row) for row in found.shapes) == tuple(
        tuple(text.replace(" ", "") for text in row) for row in shapes
    )
    assert len(found.ids) == len(found.which) == 2 * len(shapes)


RANK = """
4 steps of 100
rank 0 of 2
cpu     aten::mm 0-0.1 | c10d::allreduce_ 0.2-0.4 | device_sync 1-99.9
gpu     sgemm 0.1-60 @0.05
gpu 20  allreduce 60-90 @0.3 group_size=2
"""
MOST = np.iinfo(np.int64).max
NUMBERS = st.lists(st.integers(-MOST - 1, MOST) | st.integers(-200, 200), max_size=20)


def synthetic() -> CollectiveSequence:
    return collective_sequence(facts_of(RANK))


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Struct) and type(one) is type(other):
        return all(map(same, astuple(one), astuple(other)))
    return one == other


def test_a_course_is_the_same_again() -> None:
    assert same(unpacked(packed(synthetic())), synthetic())


@given(NUMBERS)
def test_any_numbers_are_the_same_again(values: list[int]) -> None:
    one = replace(synthetic(), bounds_ns=np.array(values, dtype=np.int64))
    assert same(unpacked(packed(one)), one)


def test_a_group_is_held_once_for_all_ranks() -> None:
    group = ProcessGroup("0", "default_pg", tuple(range(1_000)))
    first, second = (unpacked(packed(replace(synthetic(), rank=rank, groups=(group,)))) for rank in (0, 1))
    assert first.groups == (group,)
    assert first.groups[0] is second.groups[0]


def test_times_that_rise_take_few_bytes() -> None:
    calls = 10_000
    many = replace(synthetic(), bounds_ns=1_790_857_026_000_000_000 + 1_000_003 * np.arange(calls))
    assert len(packed(many)) < calls
