"""Annotations and the summary of a job on GitHub."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import github, markdown
from diagnose.trace.frames import Site
from tests.reports.alerts import checkout, diagnosed, hostile, with_finding

pytestmark = pytest.mark.usefixtures("as_for_users")


@pytest.fixture
def found(tmp_path: Path) -> Diagnosis:
    return with_finding(diagnosed(tmp_path / "rules"), site=Site("train.py", 4, "train"))


def test_a_finding_is_a_warning_at_its_line_and_an_error_if_the_build_fails(found: Diagnosis, tmp_path: Path) -> None:
    here = checkout(tmp_path / "repo")
    checked, warning = github.annotated(found, here=here)
    head = "file=src/train.py,line=4,title=The range `slow` takes long::Saves 40.0 ms (40.0 %25)."
    assert warning.startswith(f"::warning {head}")
    assert warning.endswith(" (TT01 slow_range)")
    assert "Checked 3 rules: 1 found something, 1 cannot tell, 1 failed." in checked
    assert checked.startswith("::notice title=diagnose::One step takes 100 ms")
    assert github.annotated(found, over=found.findings, here=here)[1].startswith(f"::error {head}")


def test_what_lies_in_no_file_here_is_an_annotation_of_the_job(found: Diagnosis, tmp_path: Path) -> None:
    assert github.annotated(found, here=tmp_path)[1].startswith("::warning title=The range")


def test_ten_of_a_kind_are_told(found: Diagnosis) -> None:
    (one,) = found.findings
    many = replace(found, findings=(*(one,) * 12, *(replace(one, minor=True),) * 12))
    told = github.annotated(many)
    kinds = [line.partition(" ")[0] for line in told]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"::warning": 10, "::notice": 10}


def test_hostile_names_are_one_line_and_one_value(found: Diagnosis, tmp_path: Path) -> None:
    (_, line) = github.annotated(hostile(found), here=tmp_path)
    assert line.splitlines() == [line]
    properties, _, text = line.removeprefix("::warning ").partition("::")
    assert properties.startswith("title=]](x)<a href='//e'>&\"%250A%3A%3Aerror%3A%3A%2C%3A%0D%0A")
    assert "%250A::error" in text
    assert len(line) < 9_000


def test_the_summary_is_the_report_and_is_cut_where_github_would_refuse_it(found: Diagnosis) -> None:
    whole = github.summary(markdown.render(found))
    assert whole.decode() == f"{markdown.render(found)}\n"
    cut = github.summary(markdown.render(found), len(whole) - 1)
    assert len(cut) < len(whole)
    assert cut.endswith(github.CUT.encode())
    assert whole.startswith(cut.removesuffix(github.CUT.encode()))
    assert github.summary(markdown.render(found), 10) == b""
    assert len(github.summary(markdown.render(hostile(found)), 5_000)) <= 5_000
