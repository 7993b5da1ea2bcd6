"""Risks: what may end the run, with no saving, in every report."""

from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.advice.rank_diagnosis import RankDiagnosis
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import findings, markdown, terminal
from diagnose.reports.html import page, summary
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.synthetic.reading import facts_of_ranks
from tests.diagnoses import of_ranks
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
    assert "\nRisks\n  1. The disk is nearly full (TT02)\n     The disk is 99 % full.\n" in text
    assert "It costs no time now. Confidence: high (it was asked)." in text
    assert "saves" not in text
    assert "### Risks\n\n1. **The disk is nearly full**\n   The disk is 99 % full.\n" in markdown.render(found)
    for html in (page.render(found), summary.render(found)):
        assert "Risks" in html
        assert "The disk is 99 % full." in html
        assert "Delete &lt;b&gt;old&lt;/b&gt; checkpoints." in html
    assert findings.checked(found) == "Checked 1 rules: 1 found something."


def test_it_is_told_also_where_nothing_can_be_replayed(tmp_path: Path) -> None:
    (alone,) = said(tmp_path, "gpu sgemm 1-9")
    assert alone.replay is None
    assert [risk.title for risk in alone.risks] == ["The disk is nearly full"]
    assert [outcome.outcome.value for outcome in alone.outcomes] == ["found"]


def test_of_several_ranks_it_is_one(tmp_path: Path) -> None:
    both = of_ranks(*said(tmp_path, f"{ONE.format(0)}\n---\n{ONE.format(1)}"))
    assert [risk.ranks for risk in both.risks] == [(0, 1)]
    assert "It costs no time now; on all ranks." in terminal.render(both, 100)
