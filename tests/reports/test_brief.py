"""The report in brief: its parts, its bounds whatever the recording, and notes that say each caveat once."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Fix, Outcome, OutcomeKind
from diagnose.reports import brief, findings, markdown, terminal
from tests.hostile import SAMPLE, evil, sample
from tests.reports.drawn import diagnosed, hostile
from tests.reports.test_reports import of, training

pytestmark = pytest.mark.usefixtures("as_for_users")


def test_it_says_what_ran_how_long_a_step_is_and_what_bounds_it() -> None:
    found = brief.of(of(training()))
    assert found.subject == "NVIDIA H100 80GB HBM3 · cuda runtime 12.4 · 2 of 3 recorded steps"
    assert found.headline == "10.0 ms/step · data-loader-bound: GPU idle 56 % of the time (data loading 52 %)"
    assert [(one.label, one.ns) for one in found.bar] == [
        ("compute", 3_330_000),
        ("communication", 1_000_000),
        ("memcpy", 90_000),
        ("idle: data loading", 5_200_000),
        ("idle: op dispatch", 380_000),
    ]
    assert (found.gain, found.lists, found.warning) == ((), (), "")  # No rule ran.


def test_each_finding_has_its_saving_its_change_and_how_sure_it_is() -> None:
    """17.4 ms less 5.29 and 3.68."""
    found = brief.of(sample())
    assert found.gain == ("Fix 2 faults: 17.4 → 8.39 ms/step (2.1x faster)",)
    ((name, about, some),) = found.lists
    assert (name, about) == ("FAULTS", "saving on top of those above (80 % range), confidence, rule")
    worth = [one for one in sample().findings if not one.minor]
    assert [(one.number, one.code, one.saves, one.range, one.level) for one in some] == [
        ("1", "DL02", "−5.29 ms", "(3.61–11.5)", "medium"),
        ("2", "OP01", "−3.68 ms", "(2.41–10.3)", "medium"),
    ]
    for entry, one in zip(some, worth, strict=True):
        assert (entry.title, entry.evidence) == (one.title, one.evidence[0].text)
        assert (entry.is_code, "\n".join(entry.change)) == (True, one.fixes[0].after)
    assert found.notes == (
        "Results stay the same up to rounding.",
        "Savings: 1 is simulated; 2 is based on a typical speed-up.",
        "Under 1 %, hidden: AT03 −105 us. Show: --all",
        "Not checked: memory events (ME03).",
    )
    assert found.next == (
        ("diagnose try ", str(SAMPLE), "measure the fixes in your script"),
        ("diagnose analyze --details ", str(SAMPLE), "tables, kernels, critical path"),
    )


def test_a_fix_that_is_long_is_told_in_its_sentence(tmp_path: Path) -> None:
    found = diagnosed(tmp_path)
    (one,) = found.findings
    for after, told in (("a\nb\nc", ("a", "b", "c")), ("a\nb\nc\nd", ("Do it.",)), ("x" * 301, ("Do it.",))):
        long = replace(found, findings=(replace(one, fixes=(Fix("Do it.", after=after),)),))
        ((_, (entry,)),) = findings.entries(long)
        assert (entry.change, entry.is_code) == (told, len(told) == 3)


def bounded(found: Diagnosis) -> bool:
    lines = terminal.render(found, 100).splitlines()
    return len(lines) <= terminal.MOST_LINES and max(map(len, lines)) <= 100


@pytest.mark.parametrize("kind", [OutcomeKind.CANNOT_TELL, OutcomeKind.CRASHED])
@pytest.mark.parametrize("same", [False, True])
def test_it_is_bounded_where_very_many_rules_fail_or_cannot_look(kind: OutcomeKind, same: bool) -> None:
    many = tuple(Outcome(f"rule_{k}", "XX01", kind, f"why {k * (not same)} " + "x" * 100, "how") for k in range(200))
    found = replace(sample(), outcomes=many)
    assert bounded(found)
    assert bounded(replace(found, findings=()))


def test_names_and_sentences_of_any_length_are_bounded(tmp_path: Path) -> None:
    assert bounded(pipeline.diagnose([evil().write(tmp_path / "rank0.json")]))
    found = hostile(diagnosed(tmp_path / "rules"))
    assert bounded(found)
    assert len(markdown.render(replace(found, findings=()))) < 2_000


def test_what_could_not_be_looked_at_is_named_up_to_five_things(tmp_path: Path) -> None:
    blind = tuple(Outcome("rule", f"XX{k:02}", OutcomeKind.CANNOT_TELL, f"why {k // 2}", "how") for k in range(14))
    notes = brief.of(replace(diagnosed(tmp_path), outcomes=blind)).notes
    named = "; ".join(f"why {k} (XX{2 * k:02}, XX{2 * k + 1:02})" for k in range(5))
    assert notes[-1] == f"Not checked: {named}; 2 more: --details."
