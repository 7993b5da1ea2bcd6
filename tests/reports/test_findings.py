"""Findings in reports: the first screen, hostile names, several ranks, nothing found."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts import finding as contract
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Kind, Level, OutcomeKind, RankedFinding, Together
from diagnose.replay.saving import Basis
from diagnose.reports import brief, findings, heading, markdown, terminal
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.model import IntegrityNote, Severity
from tests.diagnoses import of_ranks
from tests.reports.drawn import SYNTHETIC, diagnosed, is_golden, loaded

pytestmark = pytest.mark.usefixtures("as_for_users")


@pytest.fixture
def found(tmp_path: Path) -> Diagnosis:
    return diagnosed(tmp_path / "rules")


@pytest.mark.parametrize(("render", "suffix"), [(terminal.render, "txt"), (markdown.render, "md")])
def test_findings_read_as_they_should(
    found: Diagnosis, render: Callable[..., str], suffix: str, request: pytest.FixtureRequest
) -> None:
    """In brief, then with details. Rewrite them with --update-golden."""
    known = replace(found, provenance=replace(found.provenance, sources=()))
    is_golden("".join(render(known, details=details) for details in (False, True)), f"findings.{suffix}", request)


def test_what_pays_only_later_is_told_apart_from_what_is_minor(found: Diagnosis) -> None:
    """5 of 100 ms once the first is fixed, nothing before."""
    first = found.findings[0]
    saving = replace(first.saving, low_ns=0, likely_ns=0, high_ns=0, after_above_ns=5_000_000)
    then = {"saving": saving, "minor": True, "hidden": (4_000_000, 5_000_000, 5_000_000)}
    quality = replace(found.replay, all_together=Together(44_000_000, 45_000_000, 45_000_000))
    later = replace(first, title="Later", site=Site("a.py", 7, "f"), **then)
    both = replace(found, findings=(first, later), replay=quality)
    (told,) = findings.hidden(both)
    what = "then 5.00 ms (5.0 % of today's step), 4.00 ms to 5.00 ms; by itself nothing;"
    what += f" simulated. {first.fixes[0].do} Confidence: medium."
    assert told == ("Later, at a.py:7 (f)", what)
    assert findings.minor(both) == []
    assert heading.gain(both) == [
        "Fix 1 fault: 100 → 60.0 ms/step (1.7x faster)",
        "With what comes LATER as well: → 55.0 ms/step",
    ]
    for details in (False, True):
        text = terminal.render(both, 200, details=details)
        assert text.index("FAULTS") < text.rindex("LATER") < text.index("Later")
        assert "### LATER" in markdown.render(both, details)
    assert re.search(r"\n     Later +−5\.00 ms \(4\.00–5\.00\) +medium +TT01\n", terminal.render(both, 200))
    assert "UNDER 1 %" not in terminal.render(both, 200, minor=True)


@pytest.mark.parametrize("details", [False, True])
def test_what_saves_little_is_listed_if_all_is_asked_for(found: Diagnosis, details: bool) -> None:
    """TT01 saves 40 ms; another finding of it 0.5 ms, which is no part of the sum."""
    (one,) = found.findings
    saving = replace(one.saving, likely_ns=500_000, after_above_ns=500_000, after_above_range_ns=(0, 600_000))
    both = replace(found, findings=(one, replace(one, title="Little", saving=saving, minor=True, rank_order=2)))
    assert heading.gain(both) == ["Fix 1 fault: 100 → 60.0 ms/step (1.7x faster)"]
    assert "Under 1 %, hidden: TT01 −500 us. Show: --all" in brief.of(both).notes
    for render in (terminal.render, markdown.render):
        assert "Little" not in render(both, details=details)
        text = render(both, details=details, minor=True)
        assert re.search(r"UNDER 1 %\n+ *[·-] Little: 500 us \(0\.5 %\)\n", text)


def test_hostile_text_stays_text(found: Diagnosis) -> None:
    evil = "[red]x[/red] <script>alert(1)</script> | `code` @you http://x.y *b*"
    one = replace(found.findings[0], title=evil, evidence=(contract.Evidence(evil),), site=Site(evil, 1, evil))
    bad = replace(found, findings=(one,))
    assert "[red]x[/red] <script>" in terminal.render(bad, 200)
    text = "".join(markdown.render(bad, details) for details in (False, True))
    assert not [one for one in ("<script>", "@you", "http://") if one in text]


def test_the_ranks_it_was_found_on(tmp_path: Path) -> None:
    alone = pipeline.present(facts_of(SYNTHETIC), loaded(tmp_path / "rules"))

    def of(*ranks: int) -> Diagnosis:
        """Four ranks, of which these have the finding; rank 0 is shown, as the first of equals."""
        found = {index: alone.findings if index in ranks else () for index in range(4)}
        parts = (replace(alone.sections, rank=index, findings=some) for index, some in found.items())
        return of_ranks(*(replace(alone, sections=one) for one in parts))

    assert of(0, 1, 2, 3).findings[0].where.ranks == (0, 1, 2, 3)
    for ranks, words in (((0, 1, 2, 3), "on all ranks"), ((0, 2), "on ranks 0, 2"), ((0,), "on rank 0")):
        assert f"simulated; {words}. Confidence: medium" in terminal.render(of(*ranks), 200, details=True)


def test_what_is_only_an_upper_bound_is_called_one(found: Diagnosis) -> None:
    one = found.findings[0]
    saving = replace(one.saving, after_above_range_ns=(0, 20_000_000), basis=Basis.BOUNDED)
    bound = replace(one, saving=saving)
    told = replace(found, findings=(bound, *found.findings[1:]))
    assert findings.cards(told)[0].saving == "up to 20.0 ms (20.0 %)"
    assert heading.gain(told) == ["Fix 1 fault: 100 → 60.0 ms/step (1.7x faster, at best)"]
    assert re.search(r"slow` takes long +up to −20\.0 ms +medium +TT01\n", terminal.render(told, 200))


def test_nothing_to_fix(found: Diagnosis) -> None:
    nothing = replace(found, findings=())
    assert heading.gain(nothing) == ["No fault was found, but 1 of 3 rules could not look (see NOTES)."]
    for text in (terminal.render(nothing, 200), markdown.render(nothing)):
        assert heading.gain(nothing)[0] in text.replace("\\", "")
        assert "FAULTS" not in text
    small = replace(found, findings=(replace(found.findings[0], minor=True),), outcomes=found.outcomes[:1])
    assert heading.gain(small) == ["No fault of 1 % or more was found."]
    unpriced = heading.lost(replace(nothing, replay=None))
    assert unpriced == "The steps could not be simulated: no saving is known, and no finding is listed."
    assert heading.gain(replace(nothing, outcomes=())) == heading.gain(replace(nothing, steps=None)) == []


def test_all_cannot_tell(found: Diagnosis) -> None:
    blind = {"outcome": OutcomeKind.CANNOT_TELL, "why": "shapes", "how_to_record_it": "Record shapes."}
    one, two, three = (replace(outcome, **blind) for outcome in found.outcomes)
    nothing = replace(found, findings=(), outcomes=(one, two, three), absent=())
    assert "  Not checked: shapes (AA01, AA02, TT01).\n" in terminal.render(nothing, 200)
    text = terminal.render(nothing, 200, details=True)
    assert "shapes. Record shapes. (AA01, AA02, TT01)" in text
    others = (one, replace(two, how_to_record_it="Record sizes."), replace(three, why="sizes"))
    text = terminal.render(replace(nothing, outcomes=others), 200, details=True)
    assert "shapes, sizes. Record shapes. (AA01, AA02, TT01)" in text
    assert "Checked 3 rules: 3 cannot tell." in text


def test_the_first_lines_say_what_recording_cost_and_what_savings_are_of(found: Diagnosis) -> None:
    """Recorded steps take 100 ms, 25 % more than 80 without the profiler."""
    steps = replace(found.steps, unprofiled_step_time_ns=80_000_000, usual_step_time_ns=80_000_000)
    (one,) = found.findings
    saving = replace(one.saving, likely_ns=32_000_000, after_above_ns=32_000_000)
    every = Together(32_000_000, 32_000_000, 32_000_000)
    quality = contract.ReplayQuality(100_000_000, 0.0, 0.0, every, every)
    unprofiled = replace(found, steps=steps, findings=(replace(one, saving=saving),), replay=quality)
    first, _, second, *_ = terminal.render(unprofiled, 100).splitlines()
    assert first.endswith(" · 3 of 4 recorded steps · profiler overhead 25 %")
    time = replace(unprofiled.steps.step_time_ns, median=90_000_000, mean=120_000_000)
    for size, percent in ((1.0, 50), (2.0, 30)):  # 120 ms for 80; and for twice the work, as much as was timed.
        steps = replace(unprofiled.steps, step_time_ns=time, size_ratio=size, overhead_ratio=1.3)
        assert heading.subject(replace(unprofiled, steps=steps)).endswith(f" · profiler overhead {percent} %")
    assert second.startswith("  80.0 ms/step · ")
    assert markdown.render(unprofiled).startswith("## 80.0 ms/step · ")
    for text in (terminal.render(unprofiled, 100), markdown.render(unprofiled).replace("*", "")):
        assert "Fix 1 fault: 80.0 → 48.0 ms/step (1.7x faster)" in text
        assert "−32.0 ms (28.6–41.0)" in text
    assert "saves 32.0 ms (40.0 %)" in terminal.render(unprofiled, 100, details=True)


KINDS = {
    "H": (Kind.FAULT, Level.HIGH),
    "M": (Kind.FAULT, Level.MEDIUM),
    "L": (Kind.FAULT, Level.LOW),
    "O": (Kind.OPTION, Level.HIGH),
    "?": (Kind.WHERE_TO_LOOK, Level.MEDIUM),
}


def of_kinds(found: Diagnosis, some: str) -> Diagnosis:
    """100 ms a step, and findings of these KINDS: the first saves 40 ms after those above, the next ones 20 ms."""
    one, gains = found.findings[0], dict(enumerate((40, 20, 20)[: len(some)], start=1))

    def listed(at: int, kind: Kind, level: Level) -> RankedFinding:
        saving = replace(one.saving, after_above_ns=gains[at] * 1_000_000)
        share, sure = gains[at] / 100, contract.Confidence(level, "drawn")
        return replace(one, rank_order=at, kind=kind, confidence=sure, saving=saving, share_of_step=share)

    def together(among: str) -> Together | None:
        saved = sum(gains[at] for at, kind in enumerate(some, start=1) if kind in among) * 1_000_000
        return Together(0, saved, saved) if saved else None

    quality = contract.ReplayQuality(100_000_000, 0.0, 0.0, together("HM"), together("HML"), together("HMLO"))
    every = tuple(listed(at, *KINDS[kind]) for at, kind in enumerate(some, start=1))
    return replace(found, findings=every, replay=quality, outcomes=found.outcomes[-1:])


FIX_ONE = "Fix 1 fault: 100 → 60.0 ms/step (1.7x faster)."
OPTION = "The range `slow` takes long, −"


@pytest.mark.parametrize(
    ("some", "words"),
    [
        ("H", FIX_ONE),
        ("H?", FIX_ONE),
        ("HM", "Fix 2 faults: 100 → 40.0 ms/step (2.5x faster)."),
        ("HL", f"{FIX_ONE} With one more of low confidence: → 40.0 ms."),
        ("LHL", "Fix 1 fault: 100 → 80.0 ms/step (1.2x faster). With 2 more of low confidence: → 20.0 ms."),
        ("L", "1 fault of low confidence: 100 → 60.0 ms/step (1.7x faster)."),
        ("LL", "2 faults, both of low confidence: 100 → 40.0 ms/step (2.5x faster)."),
        ("LLL", "3 faults, all of low confidence: 100 → 20.0 ms/step (5x faster)."),
        ("HOO", f"{FIX_ONE} With options 2 and 3 as well: → 20.0 ms/step; most by option 2: {OPTION}20.0 ms."),
        ("LO", "1 fault of low confidence: 100 → 60.0 ms/step (1.7x faster). With option 2 as well: → 40.0 ms/step."),
        ("O", "No fault was found. With option 1: → 60.0 ms/step: The range `slow` takes long."),
        ("?", "No fault was found."),
    ],
)
def test_the_headline_counts_what_is_sure_and_options_apart(found: Diagnosis, some: str, words: str) -> None:
    assert heading.lost(of_kinds(found, some)) == words


def test_an_option_that_saves_per_sample_leaves_the_step_as_long(found: Diagnosis) -> None:
    alone = of_kinds(found, "O")
    per_sample, quality = replace(alone.findings[0], per_sample=True), replace(alone.replay, all_together=None)
    told = heading.lost(replace(alone, findings=(per_sample,), replay=quality))
    assert told == f"No fault was found. Option 1: {OPTION}40 % per sample."


def test_faults_options_and_where_to_look_have_lists_of_their_own(found: Diagnosis) -> None:
    told = of_kinds(found, "HO?")
    lists = {name: [one.number for one in some] for name, some in findings.entries(told)}
    assert lists == {"FAULTS": ["1"], "OPTIONS": ["2"], "WHERE TO LOOK": ["3"]}
    for details in (False, True):
        for text in (terminal.render(told, 200, details=details), markdown.render(told, details)):
            assert 0 < text.index("FAULTS") < text.index("OPTIONS") < text.index("WHERE TO LOOK")


@pytest.mark.parametrize("count", [0, 1, 5, 60])
@pytest.mark.parametrize("notes", [0, 1, 5, 60])
def test_a_report_has_forty_lines_however_much_there_is_to_say(found: Diagnosis, count: int, notes: int) -> None:
    """Faults come whole before options, and at least one note is there."""
    fault, option = of_kinds(found, "HO").findings
    some = [replace(one, title=f"{one.title} {'x' * 150}") for one in (*[fault] * count, *[option] * count)]
    told = [IntegrityNote(f"Note {at}. {'x ' * 80}", "", Severity.WARNING, ()) for at in range(notes)]
    many = replace(found, findings=tuple(some), integrity=tuple(told))
    lines = terminal.render(many, 100).splitlines()
    assert len(lines) <= terminal.MOST_LINES
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("  1  ") for line in lines) == min(count, 1)
    assert ("NOTES" in lines, lines[-1].startswith("Next:  diagnose analyze")) == (True, True)
    shown = sum(line.endswith(" TT01") for line in lines)
    assert (f"  {2 * count - shown} more: --details" in lines) is (shown < 2 * count)
    assert terminal.render(many, 100, details=True).count("(TT01)  saves ") == 2 * count
