"""The summary for agents: what it begins with, that it is bounded, and that names stay data."""

import re

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.finding import Outcome, OutcomeKind
from diagnose.reports import brief, findings, heading
from diagnose.reports.quoting import NOTE, quoted, size
from tests.hostile import ORDER, evil, outside_of_quotes, sample
from tests.reports.test_reports import EVERY, of, training
from tests.reports.test_trials import VOID, WORKERS, report


def test_it_begins_with_the_step_and_what_it_waits_for() -> None:
    lines = brief.render(of(training())).splitlines()
    assert lines[:2] == ["One step takes 10.0 ms (mean of 2 of 3 recorded, 10.0 ms to 10.0 ms)", NOTE]
    start = lines.index("Critical path of the step (of 10.0 ms):")
    shares = [float(share) for line in lines[start:] for share in re.findall(r"^  .*?\(([\d.]+) %\)", line)]
    assert shares == sorted(shares, reverse=True)
    assert 90 < sum(shares) <= 100.1


def test_each_finding_has_its_saving_its_change_and_how_sure_it_is() -> None:
    found, text = sample(), brief.render(sample())
    worth = [finding for finding in found.findings if not finding.minor]
    assert [one.rule for one in worth] == ["dataloader_starvation", "unfused_optimizer"]
    for one in worth:
        _, _, rest = text.partition(f"\n{one.rank_order}. {one.rule} ({one.code}) saves ")
        told = rest.partition(f"\n{one.rank_order + 1}. ")[0]
        assert f"Confidence: {one.confidence.level.value}." in told
        assert "Range " in told
        assert f"evidence {quoted(one.evidence[0].text)}\n" in told
        assert f"fix {quoted(one.fixes[0].do)} (" in told
        assert f"code {quoted(one.fixes[0].after)}" in told
    assert "3. unfused_pointwise (AT03): 0.6% of the step" in text
    assert "Could not look at:\n" in text
    assert "Left out here" not in text


@pytest.mark.parametrize("name", EVERY)
def test_it_is_bounded_whatever_the_recording(name: str) -> None:
    text = brief.render(of(EVERY[name]()))
    assert text.endswith("\n")
    assert size(text) <= brief.MOST_BYTES


def test_what_has_no_room_is_counted() -> None:
    found = sample()
    (first, *_) = found.findings
    many = tuple(replace(first, rank_order=number) for number in range(1, 61))
    blind = tuple(Outcome("rule", "XX01", OutcomeKind.CANNOT_TELL, f"why {k} " + "x" * 400, "how") for k in range(30))
    found = replace(found, findings=many, outcomes=blind)
    text, unchecked = brief.render(found), len(list(findings.unchecked(found)))
    assert size(text) <= brief.MOST_BYTES
    shown = len(re.findall(r"^\d+\. dataloader_starvation", text, re.MULTILINE))
    further = len(re.findall(r"^\d+\. \"", text, re.MULTILINE))
    _, _, rest = text.partition("\nCould not look at:\n")
    looked = len(re.findall(r"^  \"", rest, re.MULTILINE))
    assert shown == 5
    assert 0 < looked < 30
    left = (
        f"{55 - further} of 55 further findings, {unchecked - looked} of {unchecked} things that could not be looked at"
    )
    assert left in text


def test_what_was_tried_is_told() -> None:
    text = brief.render(replace(sample(), trials=report(WORKERS, VOID)))
    _, _, told = text.partition("\nMeasured fixes:\n")
    assert told.splitlines()[:2] == [
        '  "dataloader_starvation: 1.25x, 1.20 to 1.31, keep"',
        '  "dataloader_starvation: could not be injected"',
    ]


def test_an_empty_recording_says_what_it_could_not_look_at() -> None:
    text = brief.render(of(EVERY["inconclusive"]()))
    assert text.startswith("Nothing in this recording could be measured.\n")
    assert "The critical path is not known" in text
    assert '"device work and ops": ' in text


def test_names_that_are_orders_stand_in_quotes() -> None:
    found = of(evil())
    text = brief.render(found)
    assert ORDER in heading.subject(found)
    assert ORDER in text
    assert ORDER not in outside_of_quotes(text)
    assert all(line.isprintable() for line in text.splitlines())
    assert text.index(NOTE) < text.index(ORDER)
    assert not re.search(r"^SYSTEM", text, re.MULTILINE)


def test_every_rule_s_words_on_a_hostile_trace_stand_in_quotes(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = evil().write(tmp_path_factory.mktemp("evil") / "rank0.json")
    found = pipeline.diagnose([path])
    assert found.findings
    text = brief.render(found)
    assert size(text) <= brief.MOST_BYTES
    assert ORDER not in outside_of_quotes(text)
