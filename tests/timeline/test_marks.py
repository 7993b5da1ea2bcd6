"""Marks: what merging joins and what it keeps, by hand and against a plain model; columns as they go into JSON."""

import base64
import json
from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.contracts.timeline import Column
from diagnose.timeline.marks import RUN, Marks

Row = tuple[int, int, int, int, int, int]  # lane, start, dur, label, kind, count


TURNS = [(0, 11 * k + at, dur) for k in range(RUN) for at, dur in ((0, 1), (1, 10))]
"""Short and long in turn: the most that is left of one cell and lane when resolutions are 10."""


def marks(rows: list[Row]) -> Marks:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    return Marks(*columns, filled_ns=columns[2])


def bars(*bars: tuple[int, int, int]) -> Marks:
    """Marks of these lanes, starts and durations; label and kind are 0, 1, ... in order."""
    return marks([(*bar, k, k, 1) for k, bar in enumerate(bars)])


def rows(found: Marks) -> list[Row]:
    return [row[:6] for row in found.rows()]  # type: ignore[misc]


def places(found: Marks) -> list[tuple[int, int, int]]:
    return [row[:3] for row in rows(found)]


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("u1", [0, 255], "00ff"),
        ("u2", [1, 513], "01000102"),
        ("u4", [1, 1 << 24], "0100000000000001"),
        ("f8", [1.0, -2.0], "000000000000f03f" + "00000000000000c0"),
    ],
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_column_is_little_endian_and_comes_back(dtype: str, values: list[float], expected: str, order: str) -> None:
    column = Column.of(np.array(values, dtype=f"{order}f8"), dtype)
    assert (column.dtype, column.bdata) == (dtype, bytes.fromhex(expected))
    assert (column.values.tolist(), column.values.dtype) == (values, np.dtype(f"<{dtype}"))


def test_a_column_in_json_is_what_plotly_takes() -> None:
    column = Column.of(np.array([1, 513]), "u2")
    text = msgspec.json.encode(column)
    assert json.loads(text) == {"dtype": "u2", "bdata": base64.b64encode(b"\x01\x00\x01\x02").decode()}
    assert msgspec.json.decode(text, type=Column) == column


def test_marks_are_chosen_by_mask_and_by_position() -> None:
    three = bars((0, 0, 5), (0, 10, 5), (1, 0, 5))
    assert (three.size, rows(three.where(np.array([True, False, True])))) == (3, [rows(three)[0], rows(three)[2]])
    assert rows(three.where(np.array([2, 0]))) == [rows(three)[2], rows(three)[0]]


def test_the_order_is_lane_then_start_then_the_longer_first() -> None:
    mixed = bars((1, 0, 5), (0, 20, 1), (0, 10, 2), (0, 10, 9))
    assert places(mixed.in_order()) == [(0, 10, 9), (0, 10, 2), (0, 20, 1), (1, 0, 5)]


def test_within_cuts_off_what_sticks_out() -> None:
    found = bars((0, 0, 10), (0, 0, 11), (0, 12, 3), (1, 5, 30), (1, 19, 2), (1, 20, 5)).within(10, 20)
    assert rows(found) == [(0, 10, 1, 1, 1, 1), (0, 12, 3, 2, 2, 1), (1, 10, 10, 3, 3, 1), (1, 19, 1, 4, 4, 1)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # What is as long as the resolution is long, and stays as it is.
        ([(0, 0, 3), (0, 4, 10), (0, 15, 3)], [(0, 0, 3), (0, 4, 10), (0, 15, 3)]),
        ([(0, 0, 3), (0, 4, 9), (0, 15, 3)], [(0, 0, 18)]),
        # Marks of other lanes do not join, nor those with a gap of the resolution between them.
        ([(0, 0, 3), (0, 4, 3), (1, 5, 3), (1, 9, 3)], [(0, 0, 7), (1, 5, 7)]),
        ([(0, 0, 3), (0, 13, 3)], [(0, 0, 3), (0, 13, 3)]),
        ([(0, 0, 3), (0, 12, 3)], [(0, 0, 15)]),
        # A long row of short marks is cut at cells; what starts in a cell may end in the next.
        ([(0, start, 5) for start in range(0, 80, 5)], [(0, 0, 40), (0, 40, 40)]),
        ([(0, 30, 5), (0, 38, 5), (0, 44, 1)], [(0, 30, 13), (0, 44, 1)]),
        (TURNS, TURNS),
    ],
)
def test_short_neighbours_become_one(before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]) -> None:
    assert places(bars(*before).merged(10)) == after


def test_several_that_became_one_have_the_name_of_the_longest() -> None:
    found = marks([(2, 0, 3, 7, 1, 1), (2, 5, 4, 8, 2, 5), (2, 12, 2, 9, 3, 1)]).merged(10)
    assert rows(found) == [(2, 0, 14, 8, 2, 7)]


def test_merging_nothing() -> None:
    assert bars().merged(10).size == 0
    assert bars().at_most(0, 100)[0].size == 0
    assert bars().within(0, 10).size == 0


bounds = ((0, 2), (0, 300), (0, 40), (0, 9), (0, 4), (1, 9))
drawn_rows = st.lists(st.tuples(*(st.integers(low, high) for low, high in bounds)), max_size=30)
any_marks = drawn_rows.map(lambda drawn: marks(drawn).in_order())


def side_by_side(drawn: list[Row]) -> Marks:
    """The rows with gaps for starts: in each lane each mark begins so long after the end of the one before."""
    at, placed = Counter[int](), []
    for lane, gap, dur, *rest in drawn:
        start, length = at[lane] + gap % 25, max(dur, 1)
        placed.append((lane, start, length, *rest))
        at[lane] = start + length
    return marks(placed).in_order()


disjoint_marks = drawn_rows.map(side_by_side)
resolutions = st.integers(1, 60)


def runs(of: list[Row], resolution: int) -> list[list[Row]]:
    found: list[list[Row]] = []
    for row in of:
        before = found[-1][-1] if found else None
        if (
            before
            and before[0] == row[0]
            and max(before[2], row[2]) < resolution
            and before[1] // (4 * resolution) == row[1] // (4 * resolution)
            and row[1] - (before[1] + before[2]) < resolution
        ):
            found[-1].append(row)
        else:
            found.append([row])
    return found


@given(any_marks, resolutions)
def test_merging_agrees_with_a_plain_model(original: Marks, resolution: int) -> None:
    merged = original.merged(resolution)
    found, expected = rows(merged), runs(rows(original), resolution)
    assert len(found) == len(expected)
    assert merged.filled_ns.sum() == original.filled_ns.sum()
    for (lane, start, dur, label, kind, count), run in zip(found, expected, strict=True):
        assert (lane, start, start + dur) == (run[0][0], run[0][1], max(one[1] + one[2] for one in run))
        assert count == sum(one[5] for one in run)
        longest = max(one[2] for one in run)
        assert (label, kind) in [(one[3], one[4]) for one in run if one[2] == longest]


@given(disjoint_marks, resolutions)
def test_what_lies_side_by_side_stays_so_and_is_bounded(original: Marks, resolution: int) -> None:
    found = places(original.merged(resolution))
    for (lane, start, dur), (next_lane, next_start, _) in pairwise(found):
        assert (lane, start + dur) <= (next_lane, next_start)
    in_cell = Counter((lane, start // (RUN * resolution)) for lane, start, _ in found)
    assert max(in_cell.values(), default=0) <= 2 * RUN


@given(any_marks)
def test_merging_at_nothing_changes_nothing(original: Marks) -> None:
    assert rows(original.merged(0)) == rows(original)


@given(disjoint_marks, st.integers(3, 30))
def test_at_most_keeps_its_promise(original: Marks, count: int) -> None:
    window = int((original.start_ns + original.dur_ns).max(initial=1))
    found, resolution = original.at_most(count, window)
    assert found.size <= count
    assert (resolution == 0) == (original.size <= count)
    assert rows(found) == rows(original.merged(resolution))


@given(any_marks, st.integers(0, 300), st.integers(1, 100))
def test_within_agrees_with_a_plain_model(original: Marks, low: int, length: int) -> None:
    high = low + length
    expected = []
    for lane, start, dur, *rest in rows(original):
        held = [moment for moment in range(start, start + max(dur, 1)) if low <= moment < high]
        if held:
            expected.append((lane, held[0], len(held) if dur else 0, *rest))
    assert rows(original.within(low, high)) == expected


def test_what_is_joined_knows_how_much_of_it_is_filled() -> None:
    joined = bars((0, 0, 3), (0, 5, 2), (0, 9, 4), (0, 100, 50)).merged(10)
    assert joined.dur_ns.tolist() == [13, 50]
    assert joined.filled_ns.tolist() == [9, 50]
    assert joined.within(0, 8).filled_ns.tolist() == [8]
