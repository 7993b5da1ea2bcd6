"""Answers about a diagnosis: what they hold, that they are bounded, and that names stay data."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.agents import diagnoses
from diagnose.agents.answers import Answer
from diagnose.agents.kept import Analysed
from diagnose.agents.refusals import Refused
from diagnose.agents.timeline import timeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import brief
from diagnose.reports.quoting import MOST_BYTES, NOTE
from tests.agents.samples import ORDER, evil, outside_of_quotes, sample
from tests.reports.test_reports import EVERY, of


def kept(found: Diagnosis) -> Analysed:
    return Analysed("d1", "runs/first", found)


def pages(ask: Callable[[int], Answer]) -> Iterator[Answer]:
    start: int | None = 0
    while start is not None:
        answer = ask(start)
        yield answer
        start = answer.data["next"]


def all_answers(found: Diagnosis) -> Iterator[Answer]:
    """Every answer there is about a diagnosis."""
    one = kept(found)
    yield diagnoses.overview(one)
    yield from pages(lambda start: diagnoses.all_findings(one, start))
    for finding in found.findings:
        yield from pages(lambda start, number=finding.rank_order: diagnoses.evidence(one, number, start))  # type: ignore[misc]
    if found.timeline is not None:
        yield from pages(lambda start: timeline(one, (0, found.timeline.dur_ns), None, start))


def strings(data: object) -> Iterator[str]:
    """All texts in it."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        yield from (text for pair in data.items() for one in pair for text in strings(one))
    elif isinstance(data, list):
        yield from (text for one in data for text in strings(one))


def test_the_first_answer_is_the_summary_with_its_handle() -> None:
    answer = diagnoses.overview(kept(sample()))
    assert brief.render(sample()).rstrip() in answer.text
    assert 'evidence(diagnosis="d1", finding=1)' in answer.text
    assert answer.data["diagnosis"] == "d1"
    assert answer.data["step_ns"] == sample().step_ns
    assert [one["rule"] for one in answer.data["findings"]] == [finding.rule for finding in sample().findings]
    assert answer.data["counts"] == {"findings": 3, "minor": 1, "risks": 0, "could_not_look": 1}


def test_unknown_is_null() -> None:
    answer = diagnoses.overview(kept(of(EVERY["inconclusive"]())))
    assert (answer.data["conclusive"], answer.data["step_ns"], answer.data["breakdown"]) == (False, None, None)
    assert "Nothing in this recording could be measured." in answer.text
    assert "could be measured" in diagnoses.all_findings(kept(of(EVERY["inconclusive"]())), 0).text


def test_findings_have_their_numbers() -> None:
    answer = diagnoses.all_findings(kept(sample()), 0)
    assert answer.data["total"] == 3
    for row, one in zip(answer.data["findings"], sample().findings, strict=True):
        saving = one.saving
        assert (row["finding"], row["rule"], row["code"]) == (one.rank_order, one.rule, one.code)
        assert (row["low_ns"], row["likely_ns"], row["high_ns"]) == (saving.low_ns, saving.likely_ns, saving.high_ns)
        assert row["evidence"] == one.evidence[0].text
        assert row["fix"] == one.fixes[0].do


def test_evidence_has_all_sentences_the_code_and_windows_of_the_timeline() -> None:
    one = sample().findings[1]
    parts = diagnoses.evidence(kept(sample()), one.rank_order, 0).data["parts"]
    texts = [(part["kind"], part.get("text")) for part in parts]
    assert [text for kind, text in texts if kind == "evidence"] == [part.text for part in one.evidence]
    assert ("after", one.fixes[0].after) in texts
    assert ("confidence", one.confidence.why) in texts
    spots = [(part["start_ns"], part["end_ns"]) for part in parts if part["kind"] == "place"]
    assert spots[0] == (one.spots[0].start_ns, one.spots[0].start_ns + one.spots[0].dur_ns)
    window = timeline(kept(sample()), spots[0], [one.spots[0].lane], 0)
    assert next(mark[1] for mark in window.data["marks"]) == spots[0][0]


def test_a_finding_that_is_not_there() -> None:
    with pytest.raises(Refused, match=r"has no finding 4\. There are: 1 to 3"):
        diagnoses.evidence(kept(sample()), 4, 0)


@pytest.mark.parametrize("name", EVERY)
def test_every_answer_is_bounded_whatever_the_recording(name: str) -> None:
    for answer in all_answers(of(EVERY[name]())):
        assert answer.bytes <= MOST_BYTES


def test_many_findings_make_many_pages() -> None:
    found = sample()
    many = tuple(replace(found.findings[0], rank_order=number) for number in range(1, 101))
    some = list(pages(lambda start: diagnoses.all_findings(kept(replace(found, findings=many)), start)))
    assert len(some) > 3
    assert [row["finding"] for answer in some for row in answer.data["findings"]] == list(range(1, 101))


def test_orders_in_names_stay_quoted_and_bounded(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = pipeline.diagnose([evil().write(tmp_path_factory.mktemp("evil") / "rank0.json")])
    answers = list(all_answers(found))
    assert sum(ORDER in answer.text for answer in answers) >= 3
    for answer in answers:
        assert answer.bytes <= MOST_BYTES
        assert answer.data["untrusted"] == NOTE
        assert ORDER not in outside_of_quotes(answer.text)
        assert all(line.isprintable() for line in answer.text.splitlines())
        assert all(text.isprintable() and len(text) <= 600 for text in strings(answer.data))
        if ORDER in answer.text:
            assert answer.text.index(NOTE) < answer.text.index(ORDER)
