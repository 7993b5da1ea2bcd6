"""Every built-in rule: its page, its examples, its fixes."""

import ast
from pathlib import Path

import pytest

from diagnose.fixes.catalogue import parsed
from diagnose.pipeline import present
from diagnose.rulekit import engine, page, testing
from diagnose.synthetic.reading import facts_of

RULES = page.built_in_rules()
FILES = page.files(RULES)
EXAMPLES = [one for path in FILES for one in testing.examples_of(engine.load_file(path))]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_example(example: testing.Example) -> None:
    assert testing.failure(example, facts_of, present) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_page(path: Path) -> None:
    found = page.read(path)
    assert page.problems(found) == []
    assert found.sections["Sources"].startswith("https://")


def test_codes_and_titles_are_told_apart() -> None:
    pages = page.pages(RULES)
    for names in ([one.code for one in pages], [one.title for one in pages]):
        assert len(set(names)) == len(names)


def fixes() -> list[tuple[str, dict[str, object]]]:
    """Every `Fix(...)` that is written out, with the arguments that are literals."""
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fix":
                named = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
                literal = {name: value.value for name, value in named.items() if isinstance(value, ast.Constant)}
                found.append((path.stem, literal))
    return found


@pytest.mark.parametrize(("rule", "fix"), fixes())
def test_fix(rule: str, fix: dict[str, object]) -> None:
    trial = fix.get("trial")
    assert trial is None or parsed(str(trial)) is not None, rule
    for name in ("before", "after"):
        text = str(fix.get(name, ""))
        if not text.startswith("CUDA_") and " python " not in f" {text}":
            ast.parse(text)
    assert str(fix.get("link", "https://")).startswith("https://")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_rule_begins_with_at_most_five_lines_of_imports(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    imports = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
    assert len(imports) <= 5
    assert all(
        import_.startswith(("diagnose.rulekit.vocabulary", "diagnose.facts.", "math", "._")) for import_ in imports
    )
