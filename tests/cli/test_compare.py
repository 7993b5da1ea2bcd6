"""`diagnose compare` and `diagnose baseline`: what they read, write, refuse, and end with."""

import json
from pathlib import Path

import msgspec
import pytest

from diagnose.contracts.baseline import Baseline
from diagnose.contracts.comparison import Comparison
from tests.cli.invoking import refused, run
from tests.drawing import Drawing

STEPS = 30


def trace(path: Path, copy_us: int, steps: int = STEPS) -> Path:
    """Steps in which a matrix product takes 50 us and a copy so many."""
    draw, at = Drawing(), 0
    for number in range(steps):
        draw.step(number, at, at + 40).op("aten::mm", at + 1, at + 9).launch(
            "gemm", (at + 2, at + 3), (at + 10, at + 60)
        )
        draw.op("aten::copy_", at + 11, at + 19)
        draw.launch("copy_kernel", (at + 12, at + 13), (at + 60, at + 60 + copy_us))
        at += 60 + copy_us
    path.parent.mkdir(exist_ok=True)
    return draw.write(path)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return trace(tmp_path / "before.json", 40)


@pytest.fixture
def after(tmp_path: Path) -> Path:
    return trace(tmp_path / "after.json", 90)


def compared(*arguments: object) -> Comparison:
    done = run("compare", *arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Comparison)


def test_it_says_what_got_slower(before: Path, after: Path) -> None:
    done = run("compare", before, after)
    assert done.returncode == 0
    assert done.stdout.startswith("50 % slower (95 % interval ")
    assert "+50.0 us: aten::copy_" in done.stdout


def test_its_json_has_the_difference_and_parts_that_add_up_to_it(before: Path, after: Path) -> None:
    found = compared(before, after)
    assert (found.before_ns, found.after_ns, found.verdict) == (100_000, 150_000, "slower")
    assert {part.of: part.ns for part in found.parts if part.ns} == {"other": 50_000}
    assert sum(part.ns for part in found.parts) == found.difference_ns.likely == 50_000


@pytest.mark.slow
def test_a_baseline_stands_for_what_it_was_made_of(before: Path, after: Path, tmp_path: Path) -> None:
    kept = tmp_path / "baseline.json"
    assert run("baseline", before, "-o", kept).returncode == 0
    assert len(msgspec.json.decode(kept.read_bytes(), type=Baseline).runs) == 1
    assert compared("--baseline", kept, after) == compared(before, after) == compared(kept, after)
    printed = run("baseline", before)
    assert printed.stdout == kept.read_text()


def test_a_report_stands_for_what_it_is_of(before: Path, after: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert run("analyze", before, "--json", report).returncode == 0
    assert compared(report, after) == compared(before, after)


@pytest.mark.slow
def test_a_pattern_of_folders_is_several_recordings_and_one_of_files_is_one_of_ranks(
    before: Path, after: Path, tmp_path: Path
) -> None:
    for number, copy_us in enumerate((88, 90, 92)):
        trace(tmp_path / f"new-{number}" / "rank0.json", copy_us)
    found = compared(before, str(tmp_path / "new-*"))
    assert (found.recordings, found.after_ns) == ((1, 3), 150_000)
    assert compared(before, str(tmp_path / "aft*.json")).recordings == (1, 1)


def test_all_results_are_written(before: Path, after: Path, tmp_path: Path) -> None:
    page, pasted = tmp_path / "page.html", tmp_path / "text.md"
    done = run("compare", before, after, "--html", page, "--markdown", pasted)
    assert done.returncode == 0
    assert 'data-figure="before"' in page.read_text()
    assert 'data-figure="after"' in page.read_text()
    assert pasted.read_text().startswith("## 50 % slower")


@pytest.mark.parametrize(("limit", "code"), [("1%", 1), ("49.9%", 3), ("51%", 0)])
def test_it_fails_only_if_the_whole_interval_is_over_the_limit(
    before: Path, after: Path, limit: str, code: int
) -> None:
    done = run("compare", before, after, "--fail-over", limit)
    assert done.returncode == code
    assert {1: "Failed", 3: "Cannot decide", 0: ""}[code] in done.stderr
    assert ("--fail-over: slower by at least" in done.stderr) == bool(code)


def test_getting_faster_never_fails(before: Path, after: Path) -> None:
    assert run("compare", after, before, "--fail-over", "0%").returncode == 0


def test_too_few_steps_are_inconclusive(before: Path, tmp_path: Path) -> None:
    done = run("compare", before, trace(tmp_path / "short.json", 90, steps=3), "--fail-over", "1%")
    assert done.returncode == 3
    assert done.stdout.startswith("Cannot tell: ")


def test_a_recording_in_which_nothing_can_be_measured_is_inconclusive(before: Path, tmp_path: Path) -> None:
    empty = Drawing().span("unheard_of", "x", 0, 5).write(tmp_path / "empty.json")
    done = run("compare", before, empty)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{empty} has nothing to measure." in done.stderr


def test_one_side_or_three_are_refused_with_what_to_do(before: Path, after: Path) -> None:
    refused(run("compare", before), "Name two recordings, or one recording and --baseline FILE.")
    refused(run("compare", before, before, after), "Quote a pattern")
    refused(run("compare", before, after, "--baseline", before), "With --baseline, name one recording.")


def test_what_is_not_there_or_damaged_is_refused(before: Path, after: Path, tmp_path: Path) -> None:
    refused(run("compare", before, tmp_path / "nothing"), "does not exist")
    kept = tmp_path / "baseline.json"
    run("baseline", before, "-o", kept)
    whole = json.loads(kept.read_text())
    kept.write_text(kept.read_text()[:-40])
    refused(run("compare", "--baseline", kept, after), "baseline.json is not valid JSON.", "Create it again")
    kept.write_text(json.dumps({**whole, "schema_version": 2}))
    refused(run("compare", "--baseline", kept, after), "schema version 2", "Update diagnose.")
    named = tmp_path / "other.json"
    named.write_text(json.dumps({**whole, "runs": []}))
    refused(run("compare", "--baseline", named, after), "other.json is no baseline: ", "Create it again")
    kept.write_text(json.dumps({**whole, "runs": [{**whole["runs"][0], "times_ns": []}]}))
    refused(run("compare", "--baseline", kept, after), "baseline.json")


def test_results_never_replace_what_is_read(before: Path, after: Path) -> None:
    content = before.read_text()
    refused(run("compare", before, after, "--json", before), "would destroy it")
    refused(run("baseline", before, "-o", before), "would destroy it")
    assert before.read_text() == content


def test_a_baseline_holds_no_command_and_no_environment_that_the_manifest_does_not_name() -> None:
    sample = Path(__file__).parents[2] / "sample_traces" / "planted" / "mixed" / "three_faults_on_the_cpu" / "medium"
    kept = json.loads(run("baseline", sample).stdout)
    manifest = json.loads((sample / "manifest.json").read_text())
    assert "command" not in json.dumps(kept)
    named = {name.removeprefix("env ") for name in kept["runs"][0]["settings"] if name.startswith("env ")}
    assert named == set(manifest["environment"])


CASE = Path(__file__).parents[2] / "sample_traces" / "planted" / "communication" / "ranks_meet_to_print"


@pytest.mark.exhaustive
def test_findings_that_are_new_are_written_as_sarif(tmp_path: Path) -> None:
    file = tmp_path / "new.sarif"
    sides = CASE / "strong_fixed", CASE / "strong"
    done = run("compare", *sides, "--json", "-", "--sarif", file)
    told = msgspec.json.decode(done.stdout, type=Comparison).findings
    changed = {one.code for one in (*told.new, *(both.after for both in told.grown), *told.not_looked_at_before)}
    assert "CO15" in changed
    results = json.loads(file.read_text())["runs"][0]["results"]
    assert {result["ruleId"] for result in results} == changed
    nothing = run("compare", sides[1], sides[1], "--quiet", "--sarif", "-")
    assert json.loads(nothing.stdout)["runs"][0]["results"] == []


def test_a_baseline_cannot_be_written_as_sarif(before: Path, after: Path, tmp_path: Path) -> None:
    kept = tmp_path / "baseline.json"
    run("baseline", after, "-o", kept)
    refused(run("compare", before, kept, "--sarif", tmp_path / "new.sarif"), "Name a recording as AFTER")
