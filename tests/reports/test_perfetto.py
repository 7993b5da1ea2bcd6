"""The timeline as a trace: the reader of traces reads it, and finds in it what the Diagnosis says."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import perfetto
from tests.drawing import Drawing


def diagnosed(folder: Path) -> Diagnosis:
    draw = Drawing()
    for number in range(4):
        at = number * 10_000
        draw.step(number, at, at + 10_000).op("aten::mm", at + 4_600, at + 4_700)
        draw.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 4_000)
        draw.launch("gemm</x>", (at + 4_650, at + 4_660), (at + 4_670, at + 8_000))
    return pipeline.diagnose([draw.write(folder / "trace.json")])


def events(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(perfetto.render(diagnosis))["traceEvents"]
    return found


def test_every_mark_is_an_event_with_its_name_and_time(tmp_path: Path) -> None:
    kernels = [event for event in events(diagnosed(tmp_path)) if event["name"] == "gemm</x>" and event["pid"] == 3]
    # The first used step begins when the GPU ends the one before: at 8 ms.
    assert [(kernel["ts"], kernel["dur"], kernel["cat"]) for kernel in kernels] == [
        (6_670, 3_330, "compute"),
        (16_670, 3_330, "compute"),
        (26_670, 3_330, "compute"),
    ]


def test_findings_are_annotations_where_they_lie(tmp_path: Path) -> None:
    found = diagnosed(tmp_path)
    first = found.findings[0]
    annotations = [event for event in events(found) if event.get("cat") == first.rule]
    assert [(annotation["ts"] * 1000, annotation["dur"] * 1000) for annotation in annotations] == [
        (spot.start_ns, spot.dur_ns) for spot in first.spots
    ]
    assert annotations[0]["name"] == first.title
    assert annotations[0]["args"]["fix"] == [fix.do for fix in first.fixes]
    assert annotations[0]["args"]["saving_ms"] == first.saving.likely_ns / 1e6


def test_groups_and_lanes_are_named_and_no_row_has_two_names(tmp_path: Path) -> None:
    found = events(diagnosed(tmp_path))
    named = [(one["pid"], one["tid"]) for one in found if one["name"] == "thread_name"]
    assert len(named) == len(set(named))
    assert {(one["pid"], one["tid"]) for one in found if one["ph"] == "X"} <= set(named)
    assert [one["args"]["name"] for one in found if one["name"] == "process_name"] == [
        "Findings",
        "GPU idle",
        "Critical path",
        "GPU streams",
        "Host threads",
    ]


def test_nothing_overlaps_in_a_row_but_what_lies_inside(corpus: Path) -> None:
    """Perfetto drops slices of a row that begin before another ends, and end after it."""
    found = pipeline.diagnose([corpus / "kineto/hta/resnet_v100_5_steps.json.gz"])
    assert found.timeline is not None
    assert len(found.timeline.tables) == 2
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events(found):
        if event["ph"] == "X" and event["pid"] in (1, 2, 3):
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert rows
    for spans in rows.values():
        spans.sort()
        assert all(end <= start + 0.001 for (_, end), (start, _) in pairwise(spans))


def test_without_a_timeline_it_is_an_empty_trace(tmp_path: Path) -> None:
    empty = pipeline.diagnose([Drawing().span("unheard_of", "x", 0, 5).write(tmp_path / "trace.json")])
    assert json.loads(perfetto.render(empty))["traceEvents"] == []


@pytest.mark.parametrize("text", ["displayTimeUnit", "traceEvents"])
def test_it_is_chrome_s_format(tmp_path: Path, text: str) -> None:
    assert text in json.loads(perfetto.render(diagnosed(tmp_path)))
