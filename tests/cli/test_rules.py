"""`diagnose rules`, and the options of `analyze` that are about rules, as users run them."""

import json
import re
from pathlib import Path

import pytest

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.rulekit import page
from diagnose.synthetic import notation
from tests.cli.invoking import refused, run
from tests.rules import SLOW, folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """40 of 100 ms a step are a range called `slow`."""
    path = tmp_path / "traces" / "rank0.json"
    path.parent.mkdir()
    path.write_bytes(notation.trace("4 steps of 100\ncpu slow 0-40 | aten::mm 40-41\ngpu sgemm 40.01-99 @40"))
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return folder(tmp_path / "own", slow_range=SLOW)


def test_list() -> None:
    done = run("rules", "list")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) > 30
    assert "DL02  dataloader_starvation" in done.stdout


@pytest.mark.parametrize("name", ["dataloader_starvation", "DL02"])
def test_show(name: str) -> None:
    short = run("rules", "show", name).stdout
    assert "(DL02, dataloader_starvation)\n" in short
    assert "\nHow to fix: " in short
    assert "WORTH_SHARE" not in short
    assert len(short.splitlines()) <= 18
    done = run("rules", "show", name, "--details")
    assert done.returncode == 0
    for part in ("`dataloader_starvation` (DL02)", "*Why it costs*", "`WORTH_SHARE`", "Fires on", "5 steps of 100"):
        assert part in done.stdout


def test_own_rules_are_listed_and_shown(own: Path) -> None:
    assert "TT01  slow_range" in run("rules", "list", "--rules", own).stdout
    assert "(TT01, slow_range)" in run("rules", "show", "TT01", "--rules", own).stdout
    refused(run("rules", "list", "--rules", own / "none"), "is not a folder")
    (own / "broken.py").write_text("def f(:")
    refused(run("rules", "list", "--rules", own), "cannot be read", "broken.py")


def test_show_what_is_not_there() -> None:
    refused(run("rules", "show", "nothing"), "There is no rule 'nothing'", "rules list")


def test_test(own: Path) -> None:
    done = run("rules", "test", own)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["ok     slow_range::fires[0]", "ok     slow_range::silent[0]", "2 ok, 0 failed"]


@pytest.mark.parametrize(
    ("saving", "said"),
    [
        ("(10, 20)", "the fix should save from 10 to 20 ms (each within 5%), but saves from 40 to 40 ms"),
        ("40", "saving_ms is 40; it is a pair of ms, (low, high)"),
    ],
)
def test_test_of_a_rule_that_does_not_hold(tmp_path: Path, saving: str, said: str) -> None:
    wrong = folder(tmp_path / "wrong", slow_range=SLOW.replace("saving_ms=(40, 40)", f"saving_ms={saving}"))
    done = run("rules", "test", wrong)
    assert done.returncode == 1
    assert f"FAILED slow_range::fires[0]: {said}" in done.stdout


def test_test_of_what_holds_no_rules(tmp_path: Path) -> None:
    refused(run("rules", "test", tmp_path / "none"), "is not a folder")
    refused(run("rules", "test", tmp_path), "has no rules")
    refused(run("rules", "test", folder(tmp_path / "bad", bad="def f(:\n")), "bad.py cannot be loaded", "SyntaxError")


def found(*arguments: object) -> list[str]:
    done = run("analyze", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return [finding.rule for finding in Diagnosis.from_json(done.stdout).findings]


def test_own_rules_stand_beside_the_built_in_ones(trace: Path, own: Path) -> None:
    done = run("analyze", trace, "--rules", own)
    assert done.returncode == 0
    assert re.search(r"\n  1  The range `slow` takes long +−40\.0 ms .* medium +TT01\n", done.stdout)
    done = run("analyze", trace, "--rules", own, "--details")
    assert "The range `slow` takes long (TT01)  saves 40.0 ms (40.0 %)" in done.stdout
    on_steps = [one for one in page.pages(page.built_in_rules()) if not one.of_run]
    assert f"Checked {len(on_steps) + 1} rules" in done.stdout


def test_select_and_ignore(trace: Path, own: Path) -> None:
    assert found(trace, "--rules", own, "--select", "TT01,DL") == ["slow_range"]
    assert found(trace, "--rules", own, "--select", "DL", "--select", "SY01") == []
    assert "slow_range" not in found(trace, "--rules", own, "--ignore", "TT")
    refused(run("analyze", trace, "--select", "XX"), "There is no rule 'XX'")


def test_settings_near_the_trace(trace: Path, own: Path) -> None:
    (trace.parent / "setup.cfg").write_text("[diagnose]\nselect = TT01\n")
    assert found(trace, "--rules", own) == ["slow_range"]
    (trace.parent / "setup.cfg").write_text("[diagnose]\nselect = TT01\nslow_range.LEAST_NS = 1e12\n")
    assert found(trace, "--rules", own) == []
    (trace.parent / "setup.cfg").write_text("[diagnose]\nslow_range.LEAST_NS = much\n")
    refused(run("analyze", trace), "setup.cfg", "which is no number")


def test_settings_near_the_trace_run_no_code(trace: Path, own: Path) -> None:
    own.joinpath("marked.py").write_text(f"open({str(own / 'ran')!r}, 'w')\n")
    (trace.parent / "setup.cfg").write_text(f"[diagnose]\nrules = {own}\n")
    refused(run("analyze", trace), "setup.cfg", "ask for them by --rules")
    assert not (own / "ran").exists()


@pytest.mark.parametrize(("share", "code"), [("0.3", 1), ("30%", 1), ("0.5", 0), ("50 %", 0), ("1", 0)])
def test_fail_over(trace: Path, own: Path, share: str, code: int) -> None:
    sarif = trace.parent / "a.sarif"
    done = run("analyze", trace, "--rules", own, "--select", "TT", "--fail-over", share, "--sarif", sarif)
    assert done.returncode == code
    ((one,),) = (found["results"] for found in json.loads(sarif.read_text())["runs"])
    assert (one["ruleId"], one["level"]) == ("TT01", "error" if code else "warning")
    assert "Fix 1 fault: 100 → 60.0 ms/iteration (1.7x faster)" in done.stdout
    assert ("Failed --fail-over: slow_range (40.0%)" in done.stderr) == bool(code)


@pytest.mark.parametrize("kind", ["OPTION", "WHERE_TO_LOOK"])
def test_only_faults_are_over(trace: Path, own: Path, kind: str) -> None:
    (own / "slow_range.py").write_text(SLOW.replace("edits=(", f"kind=Kind.{kind}, edits=("))
    done = run("analyze", trace, "--rules", own, "--select", "TT", "--fail-over", "30%")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No fault was found" in done.stdout
    assert f"\n{kind.replace('_', ' ')}" in done.stdout


@pytest.mark.parametrize("share", ["much", "5", "-1%", "101%"])
def test_fail_over_something_else(trace: Path, share: str) -> None:
    refused(run("analyze", trace, "--fail-over", share), "is not a share such as 0.05 or 5%")
