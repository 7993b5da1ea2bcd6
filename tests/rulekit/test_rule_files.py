"""Every built-in rule: its page, its examples, its fixes."""

import ast
from pathlib import Path

import pytest

import diagnose
from diagnose.cli.rules import of_drawing
from diagnose.contracts.finding import OutcomeKind
from diagnose.fixes.catalogue import parsed
from diagnose.pipeline import present
from diagnose.rulekit import engine, page, testing
from diagnose.synthetic.reading import facts_of
from tests.drawing import Drawing
from tests.rules import built_in

RULES = page.built_in_rules()
FILES = page.files(RULES)
EXAMPLES = [one for path in FILES for one in testing.examples_of(engine.load_file(path))]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_example(example: testing.Example) -> None:
    assert testing.failure(example, of_drawing) is None


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
    known = ("diagnose.rulekit.vocabulary", "diagnose.facts.", "math", "statistics", "itertools", "._")
    assert all(import_.startswith(known) for import_ in imports)


GEMM = "ampere_sgemm_128x64_tn"


def ended(draw: Drawing, path: Path) -> dict[str, OutcomeKind]:
    return {outcome.code: outcome.outcome for outcome in diagnose.analyze(draw.write(path / "trace.json")).outcomes}


def steps(backward: bool) -> Drawing:
    draw = Drawing()
    for at in (0, 1000, 2000, 3000):
        draw.step(at // 1000, at, at + 1000).op("aten::mm", at + 10, at + 20)
        draw.launch(GEMM, (at + 12, at + 14), (at + 16, at + 990))
        if backward:
            draw.op("autograd::engine::evaluate_function: MmBackward0", at + 30, at + 40)
    return draw


def test_rules_about_training_do_not_apply_to_inference(tmp_path: Path) -> None:
    found = ended(steps(backward=False), tmp_path)
    assert {found[code] for code in ("OP01", "OP02", "CO03")} == {OutcomeKind.NOT_APPLICABLE}
    assert found["DL02"] is OutcomeKind.CANNOT_TELL


def test_a_training_without_optimizer_steps_in_its_recording_cannot_tell(tmp_path: Path) -> None:
    assert ended(steps(backward=True), tmp_path)["OP01"] is OutcomeKind.CANNOT_TELL


REGION = '"Torch-Compiled Region: 0/0"'
SYNTHETIC = {
    "launch_bound": (
        "4 steps of 2\ncpu  aten::add 0.1-0.118 x90 every 0.02 | {region} 1.95-1.96\n"
        "gpu  pointwise 0.111-0.114 @0.104 x90 every 0.02"
    ),
    "python_overhead": (
        "4 steps of 10\ncpu  aten::mm 0.1-0.15 x48 every 0.2 | {region} 9.8-9.85\n"
        "gpu  sgemm 0.14-0.2 @0.12 x48 every 0.2"
    ),
    "unfused_pointwise": (
        "4 steps of 40\ncpu  aten::mul 0-0.1 | aten::add 0.2-0.3 | aten::gelu 0.4-0.5"
        " | {region} 0.8-0.9 | sync 1-39.01\n"
        "gpu  pointwise 1-5 @0.05 | pointwise 5.01-9 @0.25 | pointwise 9.01-13 @0.45 | bf16_gemm 13.1-39 @0.6"
    ),
}


@pytest.mark.parametrize("name", sorted(SYNTHETIC))
@pytest.mark.parametrize("compiled", [False, True])
def test_code_that_runs_compiled_is_not_told_to_compile(name: str, compiled: bool) -> None:
    synthetic = SYNTHETIC[name].replace("{region}", REGION if compiled else "aten::view")
    (found,) = present(facts_of(synthetic), [built_in(name)]).findings
    compiles = [(fix.trial or "").startswith("wrap:torch.compile") for fix in found.fixes]
    assert any(compiles) is not compiled
