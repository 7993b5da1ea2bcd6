"""Times of which nothing is known are said, with what to do; and nothing is said of small ones."""

from diagnose.facts.run.quality import not_recorded
from diagnose.synthetic.reading import facts_of
from tests.drawing import Drawing


def said(draw: Drawing) -> list[str]:
    return [note.what for note in not_recorded(draw.facts())]


def test_the_host_s_recording_may_begin_late_and_end_early() -> None:
    draw = Drawing().work("early", (0, 10)).op("aten::mm", 100, 200).launch("k", (110, 112), (115, 250))
    assert said(draw) == ["The host's recording begins 100 us after and ends 50.0 us before the device's."]


def test_the_last_kernel_may_end_after_the_host() -> None:
    """By 8 us of 1,000."""
    assert said(Drawing().op("aten::mm", 0, 1000).launch("k", (5, 7), (8, 1008))) == []


def test_a_recording_of_the_device_alone_has_no_host_to_speak_of() -> None:
    assert said(Drawing().work("a", (0, 10)).work("b", (100, 200))) == []


def test_holes_in_graphs_are_counted() -> None:
    facts = facts_of(
        """
        4 steps of 0.4
        cpu  aten::mm 0-0.01
        gpu  pointwise 0.03-0.05 @0.015 graph | pointwise 0.25-0.38 @0.015 graph
        """
    )
    assert [note.what for note in not_recorded(facts)] == [
        "Graphs, waits or queues show 3 holes without recorded kernels: 600 us, 50.0 % of the used steps."
    ]
