"""Loading rules and running each alone: selection, thresholds, outcomes, failures."""

import re
import sys
from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.contracts.finding import Outcome, OutcomeKind
from diagnose.facts.core.base import Facts
from diagnose.rulekit import engine, page
from diagnose.rulekit.engine import RuleSet
from diagnose.rulekit.vocabulary import RuleError
from diagnose.synthetic.reading import facts_of
from tests.rules import SLOW, folder, rule

pytestmark = pytest.mark.usefixtures("as_for_users")

SYNTHETIC = "4 steps of 100\ncpu slow 0-40 | aten::mm 40-41\ngpu sgemm 40.01-99 @40"


@pytest.fixture
def facts() -> Facts:
    return facts_of(SYNTHETIC)


def outcome(facts: Facts, path: Path, text: str) -> Outcome:
    """How a rule of this text ends."""
    rules = engine.load(RuleSet((folder(path, asked=text),)))
    return pipeline.present(facts, rules).outcomes[0]


def test_five_ways_to_end(facts: Facts, tmp_path: Path) -> None:
    ended = {
        "found": outcome(facts, tmp_path / "a", SLOW),
        "clean": outcome(facts, tmp_path / "b", rule('yield Clean("3 ms")')),
        "not_applicable": outcome(facts, tmp_path / "c", rule('yield NotApplicable("no such thing")')),
        "cannot_tell": outcome(facts, tmp_path / "d", rule("yield from ()", parameters="steps, frame_sites")),
        "crashed": outcome(facts, tmp_path / "e", rule("raise KeyError('x'); yield")),
    }
    assert {kind: one.outcome.value for kind, one in ended.items()} == {kind: kind for kind in ended}
    assert (ended["clean"].why, ended["not_applicable"].why) == ("3 ms", "no such thing")
    assert (ended["cannot_tell"].why, ended["cannot_tell"].how_to_record_it) == (
        "call stacks",
        "Record with with_stack=True.",
    )
    assert re.fullmatch(r"KeyError, \w+\.py:\d+", ended["crashed"].why)


def test_a_rule_that_yields_nothing_is_clean(facts: Facts, tmp_path: Path) -> None:
    found = outcome(facts, tmp_path / "a", rule("yield from ()"))
    assert (found.outcome, found.why) == (OutcomeKind.CLEAN, "nothing found")


def test_a_rule_that_fails_keeps_no_other_from_running(facts: Facts, tmp_path: Path) -> None:
    rules = engine.load(RuleSet((folder(tmp_path / "r", broken=rule("1 / 0; yield", code="AA01"), slow_part=SLOW),)))
    said = pipeline.present(facts, rules)
    assert [outcome.outcome for outcome in said.outcomes] == [OutcomeKind.CRASHED, OutcomeKind.FOUND]
    assert [finding.rule for finding in said.findings] == ["slow_part"]


def test_an_optional_fact_is_none_where_it_is_missing(facts: Facts, tmp_path: Path) -> None:
    body = 'yield Clean("no stacks" if frame_sites is None else "stacks")'
    assert outcome(facts, tmp_path / "a", rule(body, parameters="steps, frame_sites=None")).why == "no stacks"


def test_a_caution_lowers_confidence_and_is_noted(facts: Facts, tmp_path: Path) -> None:
    doubt = rule('yield Caution("the clock is off", "Times are wrong.", lowers_all=True)', code="AA01")
    said = pipeline.present(facts, engine.load(RuleSet((folder(tmp_path / "r", doubt=doubt, slow_part=SLOW),))))
    assert said.findings[0].confidence.level.value == "medium"
    assert "the clock is off" in said.findings[0].confidence.why
    assert ("The clock is off.", "Times are wrong.") in [(note.what, note.effect) for note in said.sections.integrity]


def test_what_costs_nothing_is_clean_with_the_number(tmp_path: Path) -> None:
    """The range lies under the GPU's work, and the host waits for it anyway."""
    facts = facts_of("4 steps of 100\ncpu aten::mm 0-1 | slow 2-40 | sync 41-99.01\ngpu sgemm 0.01-99 @0")
    found = outcome(facts, tmp_path / "a", SLOW)
    assert (found.outcome, found.why) == (OutcomeKind.CLEAN, "it is there, but fixing it would save nothing")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    texts = {name: rule("yield from ()", code=code) for name, code in (("a", "XX01"), ("b", "XX02"), ("c", "YY01"))}
    return folder(tmp_path / "three", **texts)


@pytest.mark.parametrize(
    ("select", "ignore", "left"),
    [
        ((), (), "a b c"),
        (("b",), (), "b"),
        (("XX01", "c"), (), "a c"),
        (("XX",), (), "a b"),
        ((), ("XX",), "c"),
        (("XX",), ("b",), "a"),
        ((), ("YY01", "a"), "b"),
        (("xx",), (), "a b"),
    ],
)
def test_selection(three: Path, select: tuple[str, ...], ignore: tuple[str, ...], left: str) -> None:
    found = engine.load(RuleSet((three,), select, ignore))
    assert " ".join(one.page.id for one in found) == left


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"select": ("nothing",)}, "There is no rule 'nothing'"),
        ({"ignore": ("ZZ",)}, "There is no rule 'ZZ'"),
        ({"ignore": ("",)}, "There is no rule ''"),
        ({"select": ("lauch",)}, "`diagnose rules list` shows all"),
        ({"thresholds": (("a.X", 1.0),)}, "There is no threshold a.X. a has none"),
        ({"thresholds": (("z.X", 1.0),)}, "There is no threshold z.X, as no rule is called 'z'"),
    ],
)
def test_names_that_are_not_there(three: Path, rules: dict[str, object], words: str) -> None:
    with pytest.raises(RuleError, match=words):
        engine.load(RuleSet((three,), **rules))  # type: ignore[arg-type]


def test_a_name_that_is_nearly_right(tmp_path: Path) -> None:
    path = folder(tmp_path / "r", slow_part=SLOW)
    with pytest.raises(RuleError, match=r"There is no rule 'slow_prat'\. Did you mean 'slow_part'\?"):
        engine.load(RuleSet((path,), select=("slow_prat",)))
    with pytest.raises(RuleError, match="slow_part has LEAST_NS"):
        engine.load(RuleSet((path,), thresholds=(("slow_part.LEAST", 1.0),)))


def test_two_rules_of_one_code_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "r", a=rule("yield from ()", code="XX01"), b=rule("yield from ()", code="XX01"))
    with pytest.raises(RuleError, match="b has the code XX01, which is a's"):
        engine.load(RuleSet((path,)))


def test_rules_on_the_recording_run_with_whatever_is_selected(facts: Facts, tmp_path: Path) -> None:
    """They lower confidence: a selection must not make a finding look surer."""
    doubt = rule('yield Caution("the clock is off", "Times are wrong.", lowers_all=True)', code="MQ77")
    path = folder(tmp_path / "r", doubt=doubt, slow_part=SLOW)
    said = pipeline.present(facts, engine.load(RuleSet((path,), select=("slow_part",))))
    assert said.findings[0].confidence.why == "it is marked; the clock is off"
    alone = pipeline.present(facts, engine.load(RuleSet((path,), select=("slow_part",), ignore=("MQ",))))
    assert alone.findings[0].confidence.why == "it is marked"


def test_a_threshold_is_set_by_name(facts: Facts, tmp_path: Path) -> None:
    path = folder(tmp_path / "r", slow_part=SLOW)
    rules = engine.load(RuleSet((path,), thresholds=(("slow_part.LEAST_NS", 1e9),)))
    assert pipeline.present(facts, rules).outcomes[0].outcome is OutcomeKind.CLEAN
    assert pipeline.present(facts, engine.load(RuleSet((path,)))).outcomes[0].outcome is OutcomeKind.FOUND


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "asked.py cannot be loaded: SyntaxError"),
        ("x = 1\n", "no function marked @rule"),
        (SLOW.replace("Why it costs", "Why"), 'asked.py: its docstring lacks "Why it costs"'),
        (SLOW.replace("  # ns a step: less is nothing", ""), "LEAST_NS has no comment that gives its reason"),
        (SLOW.replace("steps: Steps", "stepps"), "asks for stepps, which is no fact"),
        (rule("yield").replace("Silent(", "Fires("), "it has no Silent example"),
        (
            rule("yield", more='@rule("TT03")\ndef other(steps):\n    yield\n\n'),
            "asked.py has 2 rules; a file holds one",
        ),
    ],
)
def test_files_that_are_no_rules_are_refused_with_their_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(RuleError) as refusal:
        engine.load(RuleSet((folder(tmp_path / "r", asked=text),)))
    assert words in str(refusal.value)
    assert "asked.py" in str(refusal.value)


def test_a_folder_selects_the_rules_in_it_whatever_their_codes_are() -> None:
    """Those in launch/ and in redundancy/ share codes."""
    chosen = engine.load(RuleSet(select=("launch",), ignore=("MQ",)))
    assert {one.page.id for one in chosen} == {path.stem for path in (page.built_in_rules() / "launch").glob("*.py")}


def test_two_rules_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="Two rules are called same"):
        engine.load(RuleSet((folder(tmp_path / "a", same=SLOW), folder(tmp_path / "b", same=SLOW))))


def test_rules_in_folders_of_a_folder_are_found(tmp_path: Path) -> None:
    """But not what begins with `_` or `.`, nor what is in a folder that does."""
    own = folder(tmp_path, whole=SLOW.replace("TT01", "TT02"), _part="raise RuntimeError")
    for name in ("family", "family/inner", "_private", ".hidden"):
        folder(tmp_path / name)
    folder(tmp_path / "family", nested=SLOW)
    folder(tmp_path / "family" / "inner", deeper=SLOW.replace("TT01", "TT03"))
    for name in ("_private", ".hidden"):
        folder(tmp_path / name, broken="def f(:")
    found = engine.load(RuleSet((own,)))
    assert [(one.page.code, one.page.id, one.page.family) for one in found] == [
        ("TT01", "nested", "family"),
        ("TT02", "whole", tmp_path.name),
        ("TT03", "deeper", "inner"),
    ]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="is not a folder of rules"):
        engine.load(RuleSet((tmp_path / "none",)))


def test_a_page_is_kept_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = folder(tmp_path / "own", whole=SLOW) / "whole.py"
    first = page.read(file)
    (kept,) = file.parent.rglob("*.page")
    kept.write_bytes(kept.read_bytes().replace(b'"code":"TT01"', b'"code":"TT07"'))
    assert page.read(file).code == "TT07"  # It is what is read.
    kept.write_bytes(b"[")
    assert page.read(file) == first
    file.write_text(SLOW.replace("TT01", "TT002"))
    assert page.read(file).code == "TT002"
    assert page.read(file.parent.rename(tmp_path / "other") / file.name).family == "other"


def test_a_page_that_cannot_be_kept_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of its folder is taken, as where nothing may be written."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = folder(tmp_path / "own", whole=SLOW) / "whole.py"
    (file.parent / "__pycache__").write_text("")
    assert page.read(file).code == "TT01"
    assert {one.name for one in file.parent.iterdir()} == {"__pycache__", "whole.py"}
