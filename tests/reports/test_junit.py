"""JUnit: a test case for each rule, in three states, whatever names say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import junit
from diagnose.trace.frames import Site
from tests.drawing import Drawing
from tests.reports.alerts import checkout, diagnosed, hostile, with_finding

pytestmark = pytest.mark.usefixtures("as_for_users")


@pytest.fixture
def found(tmp_path: Path) -> Diagnosis:
    return with_finding(diagnosed(tmp_path / "rules"), site=Site("train.py", 4, "train"))


def cases(text: str) -> dict[str, ET.Element]:
    """By name, without the code before it."""
    root = ET.fromstring(text)
    (suite,) = root
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": str(len(suite)),
        "failures": str(len(suite.findall("testcase/failure"))),
        "errors": str(len(suite.findall("testcase/error"))),
        "skipped": str(len(suite.findall("testcase/skipped"))),
    }
    return {str(case.get("name")).partition(" ")[2] or str(case.get("name")): case for case in suite}


def test_a_finding_fails_its_rule_only_if_it_fails_the_build(found: Diagnosis, tmp_path: Path) -> None:
    here = checkout(tmp_path / "repo")
    case = cases(junit.render(found, here=here))["slow_range"]
    assert (case.get("classname"), case.get("name")) == ("diagnose.rules", "TT01 slow_range")
    assert (case.get("file"), case.get("line")) == ("src/train.py", "4")
    assert case.find("failure") is None
    assert "Saves 40.0 ms (40.0 %)." in str(case.findtext("system-out"))
    case = cases(junit.render(found, over=found.findings, here=here))["slow_range"]
    failure = case.find("failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message")) == ("TT01", "The range `slow` takes long")
    assert "Saves 40.0 ms (40.0 %)." in str(failure.text)


def test_a_rule_that_could_not_look_is_skipped_and_one_that_failed_is_an_error(found: Diagnosis) -> None:
    known = cases(junit.render(found))
    assert sorted(known) == ["broken", "needy", "slow_range"]
    skipped, failed = known["needy"].find("skipped"), known["broken"].find("error")
    assert skipped is not None
    assert failed is not None
    assert str(skipped.get("message")).startswith("could not look: ")
    assert str(failed.get("message")).startswith("the rule failed: ")


def test_a_clean_rule_and_one_that_does_not_apply_pass_and_say_why(tmp_path: Path) -> None:
    draw = Drawing()
    for number in range(4):
        at = number * 100
        draw.step(number, at, at + 100).op("aten::mm", at + 1, at + 9).launch("k", (at + 2, at + 3), (at + 10, at + 90))
    diagnosis = pipeline.diagnose([draw.write(tmp_path / "trace.json")])
    known = cases(junit.render(diagnosis))
    assert len(known) == len(diagnosis.outcomes)
    for outcome in diagnosis.outcomes:
        case = known[outcome.rule]
        passes = case.find("skipped") is None and case.find("failure") is None and case.find("error") is None
        assert passes == (outcome.outcome.value in ("clean", "not_applicable", "found")), outcome
        if outcome.outcome.value == "not_applicable":
            assert case.findtext("system-out") == f"does not apply: {outcome.why}"
    assert known["dataloader_starvation"].get("classname") == "diagnose.data_loading"


def test_a_recording_in_which_nothing_can_be_measured_is_an_error(tmp_path: Path) -> None:
    path = Drawing().span("unheard_of", "x", 0, 5).write(tmp_path / "trace.json")
    case = cases(junit.render(pipeline.diagnose([path])))["measured"]
    assert case.find("error") is not None


def test_hostile_names_are_text(found: Diagnosis) -> None:
    worst = hostile(found)
    text = junit.render(worst, over=worst.findings)
    assert text.encode().startswith(b'<?xml version="1.0" encoding="UTF-8"?>')
    case = cases(text)["slow_range"]
    failure = case.find("failure")
    assert failure is not None
    assert str(failure.get("message")).startswith("]](x)<a href='//e'>&\"%0A::error::,:\n[31m@all")
