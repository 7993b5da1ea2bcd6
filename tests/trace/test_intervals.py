"""Interval algebra against sets of moments; parents and open spans against their definitions, for any overlaps."""

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
from diagnose.trace.sampling import varying_shapes

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


spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 15)), max_size=25)


def columns(some: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    track, start, dur = (np.array([span[k] for span in some], dtype=np.int64) for k in range(3))
    return track, start, start + dur


def parent_of(some: list[tuple[int, int, int]], child: int) -> int:
    """The definition: of the spans that contain it, the one that starts last, of these the shortest, of these the
    last in order; of equal spans an earlier one contains a later one."""
    track, start, dur = some[child]
    holders = []
    for k, (other, begin, length) in enumerate(some):
        same = (begin, length) == (start, dur)
        if (
            k != child
            and other == track
            and begin <= start
            and begin + length >= start + dur
            and (not same or k < child)
        ):
            holders.append((begin, -length, k))
    return max(holders)[2] if holders else -1


@given(spans)
def test_the_parent_is_the_innermost_span_that_contains(some: list[tuple[int, int, int]]) -> None:
    assert intervals.parents(*columns(some)).tolist() == [parent_of(some, k) for k in range(len(some))]


def test_long_chains_and_many_siblings() -> None:
    n = 20_000
    depth = intervals.parents(np.zeros(n, dtype=np.int64), np.arange(n), 2 * n - np.arange(n))
    assert depth.tolist() == list(range(-1, n - 1))
    start = np.concatenate(([0], np.arange(n)))
    siblings = intervals.parents(np.zeros(n + 1, dtype=np.int64), start, np.concatenate(([n], np.arange(n) + 1)))
    assert siblings.tolist() == [-1] + [0] * n


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), min_size=1, max_size=8), st.integers(-2, 60))
def test_the_open_span_is_the_one_started_last(cuts: list[tuple[int, int]], moment: int) -> None:
    """Spans built by nesting, so that the innermost is the last started that has not ended."""
    some = [(0, start, length) for start, length in cuts]
    proper = [span for k, span in enumerate(some) if all(disjoint_or_nested(span, other) for other in some[:k])]
    kept = [span for k, span in enumerate(proper) if all(disjoint_or_nested(span, other) for other in proper[:k])]
    track, start, end = columns(kept)
    found = intervals.innermost_at(np.array([moment]), np.array([0]), track, start, end)[0]
    open_ = [(begin, -length, k) for k, (_, begin, length) in enumerate(kept) if begin <= moment < begin + length]
    assert found == (max(open_)[2] if open_ else -1)


def disjoint_or_nested(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    (_, a0, da), (_, b0, db) = a, b
    a1, b1 = a0 + da, b0 + db
    return a1 <= b0 or b1 <= a0 or (a0 <= b0 and b1 <= a1) or (b0 <= a0 and a1 <= b1)


def test_only_the_asked_track_counts() -> None:
    track, start, end = np.array([0, 1]), np.array([0, 5]), np.array([10, 8])
    asked = np.array([6, 6, 6])
    assert intervals.innermost_at(asked, np.array([0, 1, 2]), track, start, end).tolist() == [0, 1, -1]


@given(spans, st.lists(st.tuples(st.integers(-2, 50), st.integers(0, 3)), max_size=10))
def test_the_open_span_among_any_overlaps(some: list[tuple[int, int, int]], asked: list[tuple[int, int]]) -> None:
    """The definition: of the open ones the last to start, of these the shortest, of these the last in order."""
    found = intervals.innermost_at(
        *(np.array([one[k] for one in asked], dtype=np.int64) for k in (0, 1)), *columns(some)
    )
    expected = []
    for moment, track in asked:
        open_ = [
            (start, -dur, k)
            for k, (other, start, dur) in enumerate(some)
            if other == track and (start <= moment < start + dur or (start == moment and dur == 0))
        ]
        expected.append(max(open_)[2] if open_ else -1)
    assert found.tolist() == expected


def test_spans_that_all_overlap_a_deep_chain_take_no_longer_than_others() -> None:
    """400 000 spans of which each would pass 200 000 others one by one: hours, were it quadratic."""
    n = 200_000
    chain = np.arange(n)
    start, end = np.concatenate((chain, chain + n)), np.concatenate((10 * n - chain, 20 * n + chain))
    found = intervals.parents(np.zeros(2 * n, dtype=np.int64), start, end)
    assert found.tolist() == [*range(-1, n - 1), *([-1] * n)]
    late = intervals.innermost_at(
        np.full(n, 10 * n), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), chain, end[:n]
    )
    assert (late == -1).all()


@pytest.mark.parametrize(
    ("drawing", "shapes"),
    [
        ("cpu  aten::mm 0-1 shapes=[[8,4],[4,4]]", ()),  # No steps are marked.
        ("2 steps of 10\ncpu  aten::mm 0-1 shapes=[[8,4],[4,4]]", ()),
        (
            "2 steps of 10\ncpu  aten::mm 0-1 shapes=[[8,4],[4,4]] in 0 | aten::mm 0-1 shapes=[[9,4],[4,4]] in 1",
            (("[[8,4],[4,4]]", "[[9,4],[4,4]]"),),
        ),
    ],
)
def test_what_differs_in_each_step(drawing: str, shapes: tuple[tuple[str, ...], ...]) -> None:
    rank = facts_of(drawing).rank
    found = varying_shapes(rank.spans, rank.ops, tuple(step.number for step in rank.steps))
    assert tuple(tuple(text.replace(" ", "") for text in row) for row in found.shapes) == shapes
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
