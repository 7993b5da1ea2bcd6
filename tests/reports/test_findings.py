"""Findings in reports: the first screen, hostile names, several ranks, nothing found."""

import dataclasses
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.advice.rank_diagnosis import RankDiagnosis
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Confidence, Evidence, Level, OutcomeKind, ReplayQuality, Together
from diagnose.replay.saving import Basis
from diagnose.reports import findings, markdown, terminal
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from tests.diagnoses import of_ranks
from tests.rules import SLOW, folder, rule

pytestmark = pytest.mark.usefixtures("as_for_users")

GOLDEN = Path(__file__).parents[1] / "golden"
SYNTHETIC = """
    4 steps of 100
    cpu  slow 0-40 | aten::mm 40-41 | zero_grad 99.2-99.3
    gpu  sgemm 40.01-99 @40
"""


@pytest.fixture
def said(tmp_path: Path) -> RankDiagnosis:
    """A rank with one finding, one rule that cannot tell and one that fails."""
    rules = folder(
        tmp_path / "rules",
        broken=rule("1 / 0; yield", code="AA01"),
        needy=rule("yield from ()", code="AA02", parameters="steps, frame_sites"),
        slow_range=SLOW,
    )
    return pipeline.present(facts_of(SYNTHETIC), engine.load(RuleSet((rules,))))


@pytest.fixture
def found(said: RankDiagnosis) -> Diagnosis:
    return of_ranks(said)


@pytest.mark.parametrize(("form", "suffix"), [("terminal", "txt"), ("markdown", "md")])
def test_findings_read_as_they_should(found: Diagnosis, form: str, suffix: str, request: pytest.FixtureRequest) -> None:
    """Rewrite them with --update-golden."""
    text = terminal.render(found) if form == "terminal" else markdown.render(found)
    path = GOLDEN / f"findings.{suffix}"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_first_screen_says_what_to_do(found: Diagnosis) -> None:
    first = terminal.render(found).splitlines()
    assert first[0].startswith("One step takes 100 ms")
    assert first[2] == "The fix below would bring the mean step from 100 ms to about 60.0 ms (-40.0 %;"
    assert first[4] == "1 rule failed by a bug in diagnose: what it looks for is not in this report."
    assert first[6] == "What to fix"
    assert first[7] == "  1. The range `slow` takes long (TT01)  saves 40.0 ms (40.0 %)"


def test_the_last_line_counts_and_failures_are_told(found: Diagnosis) -> None:
    for text in (terminal.render(found, 200), markdown.render(found)):
        assert text.rstrip().endswith("Checked 3 rules: 1 found something, 1 cannot tell, 1 failed.")
        assert "The rule broken (AA01) failed: ZeroDivisionError, broken.py:".replace("_", "\\_") in text.replace(
            "\\", ""
        )
    assert "call stacks. Record with with_stack=True. (AA02)" in terminal.render(found, 200)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_the_width_is_kept(found: Diagnosis, width: int) -> None:
    assert max(map(len, terminal.render(found, width).splitlines())) <= width


def test_what_pays_only_later_is_told_apart_from_what_is_minor(found: Diagnosis) -> None:
    """5 of 100 ms once the first is fixed, nothing before."""
    first = found.findings[0]
    nothing = replace(first.saving, low_ns=0, likely_ns=0, high_ns=0, after_above_ns=5_000_000)
    later = replace(
        first,
        title="Later",
        saving=nothing,
        minor=True,
        hidden=(4_000_000, 5_000_000, 5_000_000),
        site=Site("a.py", 7, "f"),
    )
    both = replace(found, findings=(first, later))
    (told,) = findings.hidden(both)
    what = "then 5.00 ms (5.0 % of today's step), 4.00 ms to 5.00 ms; by itself nothing;"
    what += f" found by replaying the step without it. {first.fixes[0].do} Confidence: medium."
    assert told == ("Later, at a.py:7 (f)", what)
    assert findings.minor(both) == []
    assert findings.left_ns(both) == 60_000_000
    text, page = terminal.render(both, 200), markdown.render(both)
    assert text.index("What to fix") < text.index("Once those are fixed") < text.index("Later")
    assert "### Once those are fixed" in page


def test_hostile_text_stays_text(found: Diagnosis) -> None:
    evil = "[red]x[/red] <script>alert(1)</script> | `code` @you http://x.y *b*"
    one = msgspec.structs.replace(found.findings[0], title=evil, evidence=(Evidence(evil),), site=Site(evil, 1, evil))
    bad = msgspec.structs.replace(found, findings=(one,))
    assert "[red]x[/red] <script>" in terminal.render(bad, 200)
    text = markdown.render(bad)
    assert "<script>" not in text
    assert "@you" not in text
    assert "http://" not in text


def test_the_ranks_it_was_found_on(said: RankDiagnosis) -> None:
    def of(*ranks: int) -> Diagnosis:
        """Four ranks, of which these have the finding; rank 0 is shown, as the first of equals."""
        made = []
        for index in range(4):
            sections = replace(said.sections, rank=index, findings=said.findings if index in ranks else ())
            made.append(dataclasses.replace(said, sections=sections))
        return of_ranks(*made)

    assert of(0, 1, 2, 3).findings[0].where.ranks == (0, 1, 2, 3)
    assert "on all ranks" in terminal.render(of(0, 1, 2, 3), 200)
    assert "on ranks 0, 2" in terminal.render(of(0, 2), 200)
    assert "on rank 0." in terminal.render(of(0), 200).replace("on rank 0. ", "on rank 0.")


def test_what_is_only_an_upper_bound_is_called_one(found: Diagnosis) -> None:
    one = found.findings[0]
    saving = replace(one.saving, after_above_range_ns=(0, 20_000_000), basis=Basis.BOUNDED)
    bound = replace(one, saving=saving)
    told = replace(found, findings=(bound, *found.findings[1:]))
    assert findings.cards(told)[0].saving == "up to 20.0 ms (20.0 %)"
    assert " at best (-" in findings.lost(told)
    assert " to about " in findings.lost(found)


def test_nothing_to_fix(found: Diagnosis) -> None:
    nothing = msgspec.structs.replace(found, findings=())
    for text in (terminal.render(nothing, 200), markdown.render(nothing)):
        assert "No fix that the rules know would save 1 % of a step." in text.replace("\\", "")
        assert "What to fix" not in text


def test_where_to_look_for_what_no_rule_knows() -> None:
    synthetic = """
        4 steps of 100
        cpu  "/home/me/train.py(3): main" 0-100 | "/home/me/net.py(8): solve" 10-80 | aten::mm 20-70
    """
    made = of_ranks(pipeline.present(facts_of(synthetic), engine.load(RuleSet(ignore=("MQ",)))))
    assert made.functions is not None
    assert [function.site.function for function in made.functions if function.site] == ["solve", "main"]
    assert findings.lost(made).endswith(
        " Most of your own code's time is at /home/me/net.py:8 (solve), with 70.0 % of a step."
    )


def test_all_cannot_tell(found: Diagnosis) -> None:
    unknown = tuple(
        msgspec.structs.replace(
            outcome, outcome=OutcomeKind.CANNOT_TELL, why="shapes", how_to_record_it="Record shapes."
        )
        for outcome in found.outcomes
    )
    text = terminal.render(msgspec.structs.replace(found, findings=(), outcomes=unknown), 200)
    assert "shapes. Record shapes. (AA01, AA02, TT01)" in text
    assert "Checked 3 rules: 3 cannot tell." in text


def test_json_keeps_everything(found: Diagnosis) -> None:
    assert Diagnosis.from_json(found.to_json()) == found


@pytest.fixture
def unprofiled(found: Diagnosis) -> Diagnosis:
    """Steps take 80 ms without the profiler."""
    assert found.steps is not None
    steps = msgspec.structs.replace(found.steps, unprofiled_step_time_ns=80_000_000, usual_step_time_ns=80_000_000)
    (one,) = found.findings
    saving = msgspec.structs.replace(one.saving, likely_ns=32_000_000, after_above_ns=32_000_000)
    every = Together(32_000_000, 32_000_000, 32_000_000)
    quality = ReplayQuality(100_000_000, 0.0, 0.0, every, every)
    ranked = (msgspec.structs.replace(one, saving=saving),)
    return msgspec.structs.replace(found, steps=steps, findings=ranked, replay=quality)


def test_the_first_lines_say_what_recording_cost_and_what_savings_are_of(unprofiled: Diagnosis) -> None:
    first = (
        "One step takes 80.0 ms without the profiler; recorded 100 ms (x 1.25; mean of 3 of 4 recorded, 100 ms to "
        "100 ms)"
    )
    second = (
        "The fix below would bring the step from 80.0 ms to about 48.0 ms (-40.0 %). Times of the CPU below are as "
        "recorded, in steps of 100 ms."
    )
    text = terminal.render(unprofiled, 100).replace("\n", " ")
    assert text.startswith(first)
    assert second in text
    text = markdown.render(unprofiled).replace("\\", "")
    assert text.startswith(f"## {first}\n")
    assert f"\n**{second}**\n" in text
    for text in (terminal.render(unprofiled, 100), markdown.render(unprofiled).replace("*", "")):
        assert "saves 32.0 ms (40.0 %)" in text


def test_the_ratio_is_that_of_the_two_numbers_beside_it(unprofiled: Diagnosis) -> None:
    """Whatever the training process's own clock says of other steps: one measure, the mean, in both."""
    assert unprofiled.steps is not None
    time = msgspec.structs.replace(unprofiled.steps.step_time_ns, median=90_000_000, mean=120_000_000)
    steps = msgspec.structs.replace(unprofiled.steps, step_time_ns=time)
    first = terminal.render(msgspec.structs.replace(unprofiled, steps=steps), 100).replace("\n", " ")
    assert "takes 80.0 ms without the profiler; recorded 120 ms (x 1.50; mean of 3" in first


def test_no_fix_is_not_said_without_how_many_rules_could_not_look() -> None:
    """On the CPU alone most have nothing to look at."""
    rules = engine.load(RuleSet())
    found = of_ranks(pipeline.present(facts_of("4 steps of 100\ncpu aten::mm 0-99"), rules))
    blind = sum(outcome.outcome is OutcomeKind.CANNOT_TELL for outcome in found.outcomes)
    assert blind > 20
    assert findings.lost(found) == (
        "No fix that the rules know would save 1 % of a step."
        f" But {blind} of {len(rules)} rules could not look; the reasons stand below."
    )


def of_levels(found: Diagnosis, *levels: Level) -> Diagnosis:
    """100 ms a step, and a finding for each level: the first saves 40 ms after those above, the next ones 20 ms."""
    gains = [40, 20, 20]
    findings = tuple(
        msgspec.structs.replace(
            found.findings[0],
            minor=False,
            hidden=None,
            confidence=Confidence(level, "drawn"),
            saving=msgspec.structs.replace(found.findings[0].saving, after_above_ns=gain * 1_000_000),
        )
        for level, gain in zip(levels, gains, strict=False)
    )
    together = Together(30_000_000, 45_000_000, 50_000_000) if any(finding.sure for finding in findings) else None
    every = Together(0, 1_000_000 * sum(gains[: len(levels)]), 100_000_000)
    quality = ReplayQuality(100_000_000, 0.0, 0.0, together, every)
    return msgspec.structs.replace(found, findings=findings, replay=quality, steps=None)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        (
            [Level.HIGH],
            "The fix below would bring the mean step from 100 ms to about 55.0 ms (-45.0 %; 50.0 ms to 70.0 ms).",
        ),
        (
            [Level.HIGH, Level.MEDIUM],
            "The 2 fixes below would together bring the mean step from 100 ms to about 55.0 ms"
            " (-45.0 %; 50.0 ms to 70.0 ms).",
        ),
        (
            [Level.LOW, Level.MEDIUM],
            "Of the 2 fixes below one has medium or high confidence. It would bring the mean step from 100 ms to"
            " about 55.0 ms (-45.0 %; 50.0 ms to 70.0 ms). With those of low confidence: about 40.0 ms.",
        ),
        (
            [Level.HIGH, Level.LOW, Level.MEDIUM],
            "Of the 3 fixes below 2 have medium or high confidence. Together they would bring the mean step from 100"
            " ms to about 55.0 ms (-45.0 %; 50.0 ms to 70.0 ms). With those of low confidence: about 20.0 ms.",
        ),
        ([Level.LOW], "The fix below has low confidence. It might bring the mean step from 100 ms to about 60.0 ms."),
        (
            [Level.LOW, Level.LOW],
            "Both fixes below have low confidence. Together they might bring the mean step from 100 ms to about"
            " 40.0 ms.",
        ),
    ],
)
def test_the_headline_counts_what_is_sure(found: Diagnosis, levels: list[Level], words: str) -> None:
    assert findings.lost(of_levels(found, *levels)) == words
