"""The marks of a window, from the most detailed table that has them."""

import numpy as np

from diagnose.contracts.timeline import Lane, Timeline
from diagnose.timeline.marks import Marks
from diagnose.timeline.window import label, lane_name, marks, pieces


def bars(*rows: tuple[int, int, int, int]) -> Marks:
    lane, start, dur, name = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Marks.single(lane, start, dur, name, np.zeros(len(rows), dtype=np.int64))


def drawn() -> Timeline:
    """100 ns on two lanes; from 40 to 60 in more detail."""
    whole = bars((0, 10, 10, 0), (0, 40, 20, 0), (0, 80, 10, 0), (1, 0, 100, 1))
    detail = bars((0, 40, 5, 2), (0, 50, 10, 3), (1, 40, 20, 1))
    return Timeline(
        dur_ns=100,
        steps=(1,),
        bounds_ns=(0, 100),
        lanes=(Lane("stream 7", "device"), Lane("", "device")),
        labels=("joined", "long", "first", ""),
        kinds=("compute",),
        tables=(whole.table(0, 100, 5), detail.table(40, 60, 0)),
        left_out=(),
    )


def rows(found: Marks) -> list[tuple[int, int, int, int]]:
    columns = (found.lane, found.start_ns, found.dur_ns, found.label)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_detail_stands_in_its_place() -> None:
    assert [(low, high) for _, low, high in pieces(drawn())] == [(40, 60), (0, 40), (60, 100)]
    assert rows(marks(drawn(), 0, 100)) == [
        (0, 10, 10, 0),
        (0, 40, 5, 2),
        (0, 50, 10, 3),
        (0, 80, 10, 0),
        (1, 0, 40, 1),
        (1, 40, 20, 1),
        (1, 60, 40, 1),
    ]


def test_marks_are_cut_at_the_window_s_ends() -> None:
    assert rows(marks(drawn(), 42, 55)) == [(0, 42, 3, 2), (0, 50, 5, 3), (1, 42, 13, 1)]
    assert rows(marks(drawn(), 15, 30, lanes=[0])) == [(0, 15, 5, 0)]
    assert rows(marks(drawn(), 22, 38, lanes=[0])) == []


def test_names() -> None:
    assert [lane_name(drawn(), lane) for lane in (0, 1)] == ["stream 7", "stream 7"]
    assert [label(drawn(), number, 0) for number in (2, 3)] == ["first", "compute"]
