"""Parents and open spans against their definitions, for proper nesting and for anything else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace import intervals

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
