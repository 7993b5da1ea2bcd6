"""Risks: what may end the run, with no saving, in every report."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diagnose import pipeline
from diagnose.advice.rank_diagnosis import RankDiagnosis
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import findings, markdown, perfetto, terminal
from diagnose.reports.html import page
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.synthetic.reading import facts_of_ranks
from tests.diagnoses import of_ranks
from tests.drawing import Drawing
from tests.rules import folder, rule

BODY = """yield Risk(
        evidence=(Evidence("The disk is 99 % full.", 0.99),),
        fixes=(Fix("Delete <b>old</b> checkpoints.", after="rm old.pt"),),
        confidence=Confidence(Level.HIGH, "it was asked"),
    )"""
ONE = "rank {} of 2\n3 steps of 10\ncpu aten::mm 0-1\ngpu sgemm 1-9 @0.5"


def said(path: Path, drawing: str) -> list[RankDiagnosis]:
    rules = engine.load(RuleSet((folder(path / "r", full=rule(BODY, title="The disk is nearly full")),)))
    return [pipeline.present(facts, rules) for facts in facts_of_ranks(drawing)]


@pytest.fixture
def found(tmp_path: Path) -> Diagnosis:
    return of_ranks(*said(tmp_path, ONE.format(0)))


def test_a_risk_has_no_price_and_is_found(found: Diagnosis) -> None:
    assert [outcome.outcome.value for outcome in found.outcomes] == ["found"]
    assert found.findings == ()
    (risk,) = found.risks
    assert (risk.rule, risk.code, risk.title, risk.ranks) == ("full", "TT02", "The disk is nearly full", (0,))
    assert Diagnosis.from_json(found.to_json()) == found


def test_every_report_shows_it(found: Diagnosis) -> None:
    text = terminal.render(found, 100)
    (_, told) = text.split("\nRISKS")
    first, title, *rest = told.splitlines()
    assert (first.strip(), " ".join(title.split())) == (findings.ABOUT["RISKS"], "The disk is nearly full high TT02")
    assert rest[:2] == ["     The disk is 99 % full.", "   > rm old.pt"]
    text += terminal.render(found, 100, details=True)
    assert "\nRISKS\n  1. The disk is nearly full (TT02)\n     The disk is 99 % full.\n" in text
    assert "It costs no time now. Confidence: high (it was asked)." in text
    assert "saves" not in text
    assert "- The disk is nearly full (TT02)  high\n   The disk is 99 % full.\n" in markdown.render(found)
    whole = markdown.render(found, details=True)
    assert "### RISKS\n\n1. **The disk is nearly full**\n   The disk is 99 % full.\n" in whole
    for html in (page.render(found), markdown.notebook_html(found)):
        assert "RISKS" in html
        assert "The disk is 99 % full." in html
        assert "Delete &lt;b&gt;old&lt;/b&gt; checkpoints." in html or "rm old.pt" in html
    assert findings.checked(found) == "Checked 1 rules: 1 found something."


def test_it_is_told_also_where_nothing_can_be_replayed(tmp_path: Path) -> None:
    (alone,) = said(tmp_path, "gpu sgemm 1-9")
    assert alone.sections.replay is None
    assert [risk.title for risk in alone.sections.risks] == ["The disk is nearly full"]
    assert [outcome.outcome.value for outcome in alone.outcomes] == ["found"]


def test_of_several_ranks_it_is_one(tmp_path: Path) -> None:
    both = of_ranks(*said(tmp_path, f"{ONE.format(0)}\n---\n{ONE.format(1)}"))
    assert [risk.ranks for risk in both.risks] == [(0, 1)]
    assert "It costs no time now; on all ranks." in terminal.render(both, 100, details=True)


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
    assert json.loads(perfetto.render(empty)) == {"displayTimeUnit": "ms", "traceEvents": []}
