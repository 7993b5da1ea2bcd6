"""Nothing after the facts can lose the report: whatever fails, all else comes, and says what is missing."""

import html
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from diagnose import failures, pipeline
from diagnose.advice.pricing import Step
from diagnose.cli import group
from diagnose.cli.results import rendered
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import OutcomeKind
from diagnose.facts.core.base import FACTS
from diagnose.reports import markdown
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.source import recording
from tests.breaking import broken, called, function, functions, raising

SAMPLES = Path(__file__).parents[1] / "sample_traces"
GPU = SAMPLES / "planted" / "fusion" / "attention_written_out" / "gpu_medium"
"""A recording with findings, made on a GPU."""

RULES = RuleSet(select=("AT", "KE", "LB01"))  # Some, for time.

FOR_PEOPLE = ("terminal", "markdown", "html")
FORMS = (*FOR_PEOPLE, "json", "perfetto", "sarif")
SAYS = "diagnose itself failed"
pytestmark = pytest.mark.usefixtures("as_for_users")


@pytest.fixture(scope="module")
def sound() -> Diagnosis:
    return diagnosed()


def diagnosed() -> Diagnosis:
    return pipeline.diagnose([GPU], rules=RULES)


def told(diagnosis: Diagnosis) -> bool:
    crashed = any(outcome.outcome is OutcomeKind.CRASHED for outcome in diagnosis.outcomes)
    return crashed or any(SAYS in note.what for note in diagnosis.integrity)


PASSES = (
    *("facts.device.kernels.kernels", "facts.run.timed_steps.slowdown", "advice.fixes_of_run.fitted"),
    *("advice.pricing.Step.priced", "advice.ranking.ranked", "replay.job_saving.baseline"),
    *("timeline.pictures.pictures", "timeline.drawing.on_timeline"),
)
"""One of each kind; slow tests break every function."""


@pytest.mark.parametrize("name", PASSES)
def test_an_analysis_comes_without_any_of_its_passes(name: str, sound: Diagnosis) -> None:
    one = function(f"diagnose.{name}")
    with broken(one):
        found = diagnosed()
    assert told(found)
    assert found.steps.step_time_ns == sound.steps.step_time_ns
    assert len(found.outcomes) == len(sound.outcomes)
    assert {outcome.rule for outcome in found.outcomes} == {outcome.rule for outcome in sound.outcomes}
    for form in ("terminal", "markdown", "json", "sarif"):
        assert SAYS in " ".join((rendered(found, form) or "").split()), form


def test_a_failure_names_its_part_the_error_and_the_line_and_nothing_of_the_recording() -> None:
    with broken(function("diagnose.timeline.drawing.timeline")):
        found = diagnosed()
    (note,) = [one for one in found.integrity if SAYS in one.what]
    assert note.what.startswith("Left out: timeline, as diagnose itself failed (ValueError, ")
    assert "4x" not in note.what
    assert "DIAGNOSE_DEBUG=1" in note.effect
    assert found.timeline is None
    assert found.findings


def test_a_finding_that_cannot_be_priced_goes_alone(sound: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, priced = sound.findings[0].rule, Step.priced

    def failing(self: Step, page: object, *given: object) -> object:
        if page.id == lost:  # type: ignore[attr-defined]
            raise ValueError("4x")
        return priced(self, page, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Step, "priced", failing)
    found = diagnosed()
    assert {one.rule for one in found.findings} == {one.rule for one in sound.findings} - {lost}
    (ended,) = [outcome for outcome in found.outcomes if outcome.rule == lost]
    assert ended.outcome is OutcomeKind.CRASHED


def test_a_fact_that_fails_takes_along_what_stands_on_it_and_no_more() -> None:
    """Rules that ask for it have failed; those that do not, end as before."""
    before = {outcome.rule: outcome.outcome for outcome in diagnosed().outcomes}
    with broken(function("diagnose.facts.device.transfers.copies")):
        found = diagnosed()
    (absent,) = [one for one in found.absent if SAYS in one.what]
    assert absent.fact == "copies"
    assert found.copies is None
    assert found.kernels
    changed = {
        outcome.rule: outcome.outcome for outcome in found.outcomes if outcome.outcome is not before[outcome.rule]
    }
    assert set(changed.values()) <= {OutcomeKind.CRASHED, OutcomeKind.CLEAN}


def test_failures_are_raised_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failures.DEBUG, "1")
    one = function("diagnose.timeline.drawing.timeline")
    with broken(one), pytest.raises(ValueError, match="4x"):
        diagnosed()


def test_memory_that_runs_out_is_no_failure_of_a_part() -> None:
    def full() -> None:
        raise MemoryError

    with failures.collected() as lost, pytest.raises(MemoryError):
        failures.attempt("the timeline", None, full)
    assert lost == []


def parts_of(diagnosis: Diagnosis, form: str) -> Iterator[tuple[str, str | None]]:
    """Each function of reports that a form calls, and the text that comes without it; of the page its own."""
    rendered(diagnosis, form)  # Which loads its modules.
    among = functions(*(("diagnose.reports.html",) if form == "html" else ("diagnose.reports", "diagnose.trace.units")))
    for name in called(lambda: rendered(diagnosis, form), among):
        with broken(among[name]):
            yield name, rendered(diagnosis, form)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "html"])
def test_a_report_comes_without_any_of_its_parts(
    form: str, sound: Diagnosis, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever function of it fails. Where that is what holds the report together, another one comes, or a line."""
    count = 0
    for name, text in parts_of(sound, form):
        count += 1
        said = capsys.readouterr().err
        assert text or said, name
        assert SAYS in " ".join(f"{text} {said}".split()), name
        assert text or form not in FOR_PEOPLE, name
    assert count or form == "json"


@pytest.mark.exhaustive
def test_a_page_comes_without_any_of_its_parts(sound: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in parts_of(sound, "html"):
        assert text, name
        assert SAYS in f"{text} {capsys.readouterr().err}", name


@pytest.mark.parametrize("figure", ["step_figures.step_bar", "work_figures.kernel_tree", "timeline_figure.drawn"])
def test_a_page_comes_without_a_figure(figure: str, sound: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    rendered(sound, "html")
    with broken(function(f"diagnose.reports.html.{figure}")):
        page = rendered(sound, "html")
    assert SAYS in page
    assert 'id="fixes"' in page
    assert capsys.readouterr().err == ""


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = recording.read(recording.find([GPU]).ranks[0])
    monkeypatch.setattr(recording, "read", lambda files: rank)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("read_once")
def test_an_analysis_comes_without_any_fact() -> None:
    """Each in turn, of those that this analysis asks for."""
    among = functions("diagnose.facts")
    for name in called(diagnosed, among):
        if name.rpartition(".")[2] in FACTS:
            with broken(among[name]):
                found = diagnosed()
            assert told(found), name
            assert rendered(found, "terminal"), name


@pytest.mark.slow
@pytest.mark.usefixtures("read_once")
def test_an_analysis_comes_without_any_rule(sound: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others find stays as it is, but for its order and what one saves on top of another."""
    rules, failed = engine.load(RULES), set[str]()
    for lost in rules:
        failing = [replace(one, check=replace(one.check, run=raising)) if one is lost else one for one in rules]
        monkeypatch.setattr(engine, "load", lambda chosen, some=failing: some)
        found = diagnosed()
        crashed = {outcome.rule for outcome in found.outcomes if outcome.outcome is OutcomeKind.CRASHED}
        assert crashed <= {lost.page.id}, lost.page.id
        failed |= crashed
        others = {one.rule for one in sound.findings} - {lost.page.id}
        assert others <= {one.rule for one in found.findings}, lost.page.id
        assert rendered(found, "terminal"), lost.page.id
    assert {one.rule for one in sound.findings} <= failed


def test_a_notebook_shows_what_is_left(sound: Diagnosis) -> None:
    with broken(function("diagnose.reports.brief._next")):
        shown = markdown.notebook_html(sound)
    assert SAYS in shown
    assert sound.findings[0].title in html.unescape(shown)


def test_every_fact_may_fail(sound: Diagnosis) -> None:
    """All at once: nothing is measured, and that is said."""
    facts = functions("diagnose.facts")
    ones = [one for name, one in facts.items() if name.rpartition(".")[2] in FACTS]
    with ExitStack() as stack:
        for one in ones:
            stack.enter_context(broken(one))
        found = diagnosed()
    assert told(found)
    assert found.steps is None
    for form in FORMS:
        assert rendered(found, form)


@pytest.mark.parametrize(
    ("lost", "code", "missing"), [("reports.html.style.template", 0, ()), ("reports.sarif.render", 70, ("sarif",))]
)
def test_the_command_writes_what_can_be_made(lost: str, code: int, missing: tuple[str, ...], tmp_path: Path) -> None:
    words = ["analyze", str(GPU), "--select", "AT,KE"]
    for form in ("html", "json", "markdown", "sarif"):
        words += [f"--{form}", str(tmp_path / form)]
    with broken(function(f"diagnose.{lost}")):
        done = CliRunner().invoke(group, words)
    assert done.exit_code == code, done.output
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"html", "json", "markdown", "sarif"} - set(missing)
    told_by = [done.output, *(path.read_text() for path in tmp_path.iterdir())]
    assert any(SAYS in " ".join(text.split()) for text in told_by)
