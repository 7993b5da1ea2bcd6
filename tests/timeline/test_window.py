"""The marks of a window, from the most detailed table that has them."""

import numpy as np
import pytest

from diagnose.contracts.timeline import Lane, Spot, Timeline
from diagnose.facts.core.base import Facts
from diagnose.replay.edits import Detach, Remove, Shorten, Times
from diagnose.timeline import drawing as module
from diagnose.timeline.drawing import MOST_SPOTS, label, lane_name, marks, pieces, spots
from diagnose.timeline.marks import Marks, lanes
from tests.drawing import Drawing
from tests.replay.programs import ids, python


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


STREAM, OPS, CALLS = 2, 3, 4  # Lanes of `trained`, below those of the idle device and the critical path.


def test_places_lie_in_their_lanes_from_the_timeline_s_start(trained: Facts) -> None:
    assert [lane.name for lane in lanes(trained).lanes] == [
        "GPU idle",
        "critical path",
        "stream 7",
        "main thread: ops",
        "main thread: calls",
    ]
    # The first step's kernel ends where the timeline begins.
    assert spots(trained, [Shorten(ids(trained, "gemm"), 0.5)]) == (
        (Spot(STREAM, 800_000, 200_000), Spot(STREAM, 1_800_000, 200_000), Spot(STREAM, 2_800_000, 200_000)),
        3,
    )


def test_places_are_cut_off_at_the_timeline_s_ends(trained: Facts) -> None:
    assert spots(trained, [Detach(ids(trained, "cudaStreamSynchronize"))]) == (
        (
            Spot(CALLS, 0, 10_000),
            Spot(CALLS, 710_000, 300_000),
            Spot(CALLS, 1_710_000, 300_000),
            Spot(CALLS, 2_710_000, 290_000),
        ),
        4,
    )


def test_times_lie_in_the_first_lane_of_their_thread(trained: Facts) -> None:
    assert spots(trained, [Shorten(python(trained), 0.5)]) == (
        (Spot(OPS, 10_000, 200_000), Spot(OPS, 1_010_000, 200_000), Spot(OPS, 2_010_000, 200_000)),
        3,
    )
    nowhere = Times(99, python(trained).pieces)
    assert spots(trained, [Shorten(nowhere, 0.5)]) == ((), 0)


def test_places_of_several_edits_are_in_order_of_time_and_each_is_there_once(trained: Facts) -> None:
    gemm = ids(trained, "gemm")
    found, count = spots(trained, [Shorten(gemm, 0.5), Remove(ids(trained, "aten::add")), Detach(gemm)])
    assert [(one.lane, one.start_ns) for one in found] == [
        (OPS, 10_000),
        (STREAM, 800_000),
        (OPS, 1_010_000),
        (STREAM, 1_800_000),
        (OPS, 2_010_000),
        (STREAM, 2_800_000),
    ]
    assert count == 6


def test_without_edits_there_are_no_places(trained: Facts) -> None:
    assert spots(trained, []) == ((), 0)
    assert spots(trained, [Remove(np.zeros(0, dtype=np.int64))]) == ((), 0)


def test_an_op_too_deep_to_be_drawn_lies_in_the_deepest_lane() -> None:
    draw = Drawing().launch("k", (1, 2), (2, 100))
    for depth, name in enumerate("abcde"):
        draw.op(name, 10 + depth, 50 - depth)
    facts = draw.facts()
    at = {name: spots(facts, [Remove(ids(facts, name))])[0] for name in "abcde"}
    assert at["a"] == (Spot(3, 9_000, 40_000),)
    assert at["c"] == (Spot(5, 11_000, 36_000),)
    assert (at["d"], at["e"]) == ((Spot(5, 12_000, 34_000),), (Spot(5, 13_000, 32_000),))
    assert lanes(facts).lanes[6].name == "main thread: calls"


def test_an_operation_without_a_lane_lies_nowhere() -> None:
    draw = Drawing().op("aten::a", 0, 90).frame("train.py(1): main", 5, 20).launch("k", (1, 2), (2, 100))
    facts = draw.facts()
    frame = ids(facts, "train.py*")
    assert len(frame) == 1
    assert spots(facts, [Remove(frame)]) == ((), 0)


def uneven() -> Facts:
    """Used steps on the device of 100, 120 and 110 us, the last one typical, with kernels named `k`."""
    draw = Drawing()
    for number, (start, end) in enumerate(((0, 100), (100, 200), (200, 320), (320, 430))):
        draw.step(number, start, end - 10).launch("end", (start + 80, start + 81), (end - 1, end))
    draw.launch("k", (110, 111), (150, 190)).launch("k", (210, 211), (250, 310))
    return draw.launch("k", (325, 326), (330, 335)).launch("k", (327, 328), (340, 350)).facts()


def test_the_typical_step_s_places_come_before_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = uneven()
    edits = [Shorten(ids(facts, "k"), 0.5)]

    def shown(most: int) -> tuple[list[tuple[int, int]], int]:
        monkeypatch.setattr(module, "MOST_SPOTS", most)
        found, count = spots(facts, edits)
        return [(one.start_ns // 1000 + 100, one.dur_ns // 1000) for one in found], count

    assert shown(1) == ([(340, 10)], 4)
    assert shown(2) == ([(330, 5), (340, 10)], 4)
    assert shown(3) == ([(250, 60), (330, 5), (340, 10)], 4)
    assert shown(4) == ([(150, 40), (250, 60), (330, 5), (340, 10)], 4)


def test_the_longest_places_are_kept_and_all_are_counted() -> None:
    draw = Drawing()
    for k in range(MOST_SPOTS + 10):
        draw.launch("k", (100 * k, 100 * k + 1), (100 * k + 1, 100 * k + 2 + k))
    facts = draw.facts()
    found, count = spots(facts, [Shorten(ids(facts, "k"), 0.5)])
    assert count == MOST_SPOTS + 10
    assert [one.dur_ns for one in found] == [1_000 * (k + 1) for k in range(10, MOST_SPOTS + 10)]
