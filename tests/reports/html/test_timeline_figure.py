"""The timeline as a figure: what is drawn at which zoom, and what it says where one points at it."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.timeline import MarkTable
from diagnose.facts.core.base import Facts, Missing
from diagnose.reports.html import timeline_figure
from diagnose.reports.html.timeline_figure import MOST_SHOWN, PIXELS, chosen, levels, timeline
from diagnose.source import recording
from diagnose.timeline.marks import Marks
from diagnose.trace.units import duration
from tests.diagnoses import of_ranks
from tests.drawing import Drawing
from tests.reports.test_reports import of


def steps() -> Drawing:
    """Two used steps of 10 ms: a kernel of 6 ms in each, then nothing; the second also has a hundred short ones."""
    draw = Drawing()
    for number in range(3):
        at = number * 10_000
        draw.step(number, at, at + 10_000).launch("gemm<a>", (at + 1_000, at + 1_010), (at + 2_000, at + 8_000))
    for k in range(100):
        at = 28_000 + 10 * k
        draw.launch("tiny", (at - 2, at - 1), (at, at + 2))
    return draw


def bars(diagnosed: Diagnosis, **part: float) -> dict[str, list[tuple[float, float, str]]]:
    """(start, duration in ms, hover text) of the marks of each kind that are drawn."""
    drawn = timeline(diagnosed, **part)
    return {trace.name: list(zip(trace.base, trace.x, trace.hovertext, strict=True)) for trace in drawn.data}


def test_marks_are_bars_with_their_times_in_ms() -> None:
    compute = bars(of(steps()), start_ms=0, end_ms=12)["compute"]
    assert compute[0] == (pytest.approx(4.0), pytest.approx(6.0), "gemm&lt;a&gt;<br>compute, 6.00 ms")


def test_what_is_joined_says_how_much_it_stands_for_and_is_as_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole is 21 ms: 17.5 us a pixel. Kernels of 2 us, 10 us apart, are joined over 70 us.
    monkeypatch.setattr(timeline_figure, "MOST_SHOWN", 100)
    drawn = timeline(of(steps()))
    compute = next(trace for trace in drawn.data if trace.name == "compute")
    joined = [
        (x, text, opacity)
        for x, text, opacity in zip(compute.x, compute.hovertext, compute.marker.opacity, strict=True)
        if "operations" in text
    ]
    assert len(joined) > 10
    for width, text, opacity in joined:
        count = int(text.split()[0])
        assert count in (7, 6, 2)
        assert text == f"{count} operations, {duration(2000 * count)} together; the longest:<br>tiny<br>compute"
        assert opacity == pytest.approx(max(0.002 * count / width, 0.15))


def test_a_narrower_part_is_drawn_in_more_detail() -> None:
    close = bars(of(steps()), start_ms=20, end_ms=21)["compute"]
    assert {text for *_, text in close} <= {"tiny<br>compute, 2.00 us", "gemm&lt;a&gt;<br>compute, 6.00 ms"}
    assert sum("tiny" in text for *_, text in close) > 50


def test_lanes_go_from_top_to_bottom_and_steps_are_bounded_and_named() -> None:
    drawn = timeline(of(steps()))
    assert drawn.layout.yaxis.ticktext == ("GPU idle", "critical path", "stream 7", "main thread: calls")
    assert drawn.layout.yaxis.range == (3.5, -0.5)
    assert [shape.x0 for shape in drawn.layout.shapes] == pytest.approx([0.0, 10.0, 20.992], abs=0.001)
    assert [text.text for text in drawn.layout.annotations] == ["step 1", "step 2"]


def test_without_steps_there_is_no_timeline() -> None:
    with pytest.raises(Missing):
        timeline(of(Drawing().span("unheard_of", "x", 0, 5)))


def table(marks: Marks, resolution: int = 0) -> MarkTable:
    return marks.table(0, 1_000_000, resolution)


def row_of(count: int, dur: int) -> Marks:
    zeros = np.zeros(count, dtype=np.int64)
    start = np.arange(count, dtype=np.int64) * (1_000_000 // count)
    return Marks.single(zeros, start, np.full(count, dur, dtype=np.int64), zeros, zeros)


def test_the_finest_level_that_is_not_too_much_is_chosen() -> None:
    coarse, fine = table(row_of(10, 50_000)), table(row_of(2 * MOST_SHOWN, 50))
    assert chosen([coarse, fine], 0, 1_000_000).size == 10
    assert chosen([coarse, fine], 0, 500_000 - 1).size == MOST_SHOWN


def test_a_step_known_in_detail_is_used_only_within_it() -> None:
    coarse, detail = table(row_of(10, 50_000)), row_of(5, 10).where(np.array([0])).table(0, 1000, 0)
    assert chosen([coarse, detail], 0, 1000).dur_ns.tolist() == [10]
    assert chosen([coarse, detail], 0, 2000).dur_ns.tolist() == [50_000]


def test_levels_are_few_and_together_bounded(corpus: Path) -> None:
    for path in ("tensorboard/resnet50_autograd_0_workers", "hta/nccl_a100_rank0_of_2", "param/linear"):
        facts = Facts(recording.read(recording.find([str(corpus / f"kineto/{path}.json.gz")]).ranks[0]))
        shown = timeline_figure.drawn(of_ranks(pipeline.present(facts, [])))
        found = levels(shown)
        sizes = [Marks.of(one).size for one in found]
        assert sum(sizes) < 50_000
        assert Marks.of(found[0]).size <= MOST_SHOWN
        assert found[0].resolution_ns <= 2 * shown.dur_ns // PIXELS
        assert found[-len(shown.tables) :] == list(shown.tables)
        assert all(
            one.resolution_ns > other.resolution_ns for one, other in pairwise(found[: -len(shown.tables) + 1 or None])
        )


def test_many_steps_are_not_bounded_one_by_one() -> None:
    draw = Drawing()
    for number in range(200):
        draw.step(number, 100 * number, 100 * number + 100).work("k", (100 * number, 100 * number + 50))
    drawn = timeline(of(draw))
    assert (len(drawn.layout.shapes), len(drawn.layout.annotations)) == (0, 0)


@pytest.mark.parametrize("part", [(5, 2), (3, 3), (100, 200), (-5, -1), (None, 0), (float("nan"), 3)])
def test_a_part_that_is_none_is_refused(part: tuple[float | None, float]) -> None:
    with pytest.raises(ValueError, match=r"start_ms has to lie before end_ms, and both within 0 and 20\.992"):
        timeline(of(steps()), *part)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("GPU idle", "idle"),
        ("stream 7 (communication)", "s7"),
        ("GPU 1 stream 20", "g1 s20"),
        ("main thread: ops", "main"),
        ("thread 2: calls", "calls"),
        ("thread 3: ops", "t3"),
        ("critical path", "path"),
        ("", ""),
    ],
)
def test_lanes_have_short_names_for_narrow_screens(name: str, short: str) -> None:
    assert timeline_figure.short(name) == short
