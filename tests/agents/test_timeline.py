"""Windows of the timeline as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.agents.kept import Analysed
from diagnose.agents.refusals import Refused
from diagnose.agents.timeline import timeline
from tests.drawing import Drawing
from tests.reports.test_reports import EVERY, of


@pytest.fixture(scope="module")
def synthetic() -> Analysed:
    """Four steps of 100 us: an op from 1 to 9, a launch at 2, its kernel from 10 to 60.

    The first is not used. A step of the device ends with its work, so that the timeline starts at 60: there the kernels
    run from 50 to 100, the ops from 41 to 49.
    """
    draw = Drawing()
    for number in range(4):
        at = number * 100
        draw.step(number, at, at + 100).op("aten::mm", at + 1, at + 9).launch("k", (at + 2, at + 3), (at + 10, at + 60))
    return Analysed("d1", "rank0.json", of(draw))


def kernels(found: Analysed, *window: int) -> list[list[object]]:
    """Start, duration, name and count of what runs on the device."""
    data = timeline(found, window, None, 0).data  # type: ignore[arg-type]
    lanes = {int(lane) for lane, name in data["lanes"].items() if name.startswith("device: ")}
    return [mark[1:] for mark in data["marks"] if mark[0] in lanes]


def test_a_window_has_its_marks_from_the_timeline_s_start(synthetic: Analysed) -> None:
    assert kernels(synthetic, 0, 100_000) == [[50_000, 50_000, "k", 1]]
    assert kernels(synthetic, 0, 300_000) == [[at + 50_000, 50_000, "k", 1] for at in (0, 100_000, 200_000)]
    assert kernels(synthetic, 60_000, 70_000) == [[60_000, 10_000, "k", 1]]
    assert kernels(synthetic, 0, 40_000) == []


def test_without_a_window_it_is_one_step(synthetic: Analysed) -> None:
    data = timeline(synthetic, (None, None), None, 0).data
    assert (data["start_ns"], data["end_ns"]) == (0, 100_000)
    assert data["steps"] == [[1, 0, 100_000], [2, 100_000, 200_000], [3, 200_000, 300_000]]
    assert data["columns"] == ["lane", "start_ns", "dur_ns", "name", "count"]


def test_the_text_says_the_same(synthetic: Analysed) -> None:
    text = timeline(synthetic, (0, 100_000), None, 0).text
    assert '\n  0.050 +0.050 "k"\n' in text
    assert '\n  0.041 +0.008 "aten::mm"\n' in text
    assert "of 0.300;" in text


def test_lanes_are_chosen(synthetic: Analysed) -> None:
    everything = timeline(synthetic, (0, 100_000), None, 0).data
    (lane,) = [int(lane) for lane, name in everything["lanes"].items() if name.startswith("device: ")]
    assert timeline(synthetic, (0, 100_000), [lane], 0).data["marks"] == [[lane, 50_000, 50_000, "k", 1]]
    with pytest.raises(Refused, match="There is no lane 99"):
        timeline(synthetic, (0, 100_000), [99], 0)


@pytest.mark.parametrize("window", [(300_000, 400_000), (5, 5), (9, 3)])
def test_an_empty_window_is_refused(synthetic: Analysed, window: tuple[int, int]) -> None:
    with pytest.raises(Refused, match="300000 ns long"):
        timeline(synthetic, window, None, 0)


def test_without_steps_there_is_none() -> None:
    with pytest.raises(Refused, match="has no timeline"):
        timeline(Analysed("d1", "x", of(EVERY["inconclusive"]())), (None, None), None, 0)


def test_many_short_marks_are_joined_and_counted(tmp_path: Path) -> None:
    draw = Drawing()
    for number in range(2):
        at = number * 10_000
        draw.step(number, at, at + 10_000)
        for k in range(1000):
            start = at + 10 * k
            draw.launch(f"kernel_{k}", (start, start + 1), (start + 2, start + 9))
    found = Analysed("d1", "x", pipeline.diagnose([draw.write(tmp_path / "rank0.json")]))
    joined = kernels(found, 0, 10_000_000)
    assert 1 < len(joined) <= 100
    assert sum(int(str(mark[3])) for mark in joined) == 1000
    few = kernels(found, 0, 30_000)
    assert [mark[2] for mark in few] == ["kernel_0", "kernel_1", "kernel_2"]
