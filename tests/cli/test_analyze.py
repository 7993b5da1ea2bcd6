"""The command as users run it: results on standard output, everything else on standard error, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.capture.agent.watch.log import framed
from diagnose.cli import main
from diagnose.contracts.diagnosis import Diagnosis
from tests.cli.invoking import refused, run
from tests.drawing import Drawing
from tests.hostile import SAMPLE


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    draw = Drawing()
    for number in range(4):
        at = number * 100
        draw.step(number, at, at + 100).op("aten::mm", at + 1, at + 9).launch("k", (at + 2, at + 3), (at + 10, at + 60))
        draw.span("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", at + 90, at + 91)
    return draw.write(tmp_path / "rank0.json")


STEP = "100 us/step · host-bound: GPU idle 50 % of"


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_details_and_what_saves_little_are_printed_if_asked_for(form: str) -> None:
    """Two findings are worth a card, the third saves 105 us of 17.4 ms."""
    said = {
        options: run("analyze", SAMPLE, "--format", form, *options).stdout.replace("\\", "")
        for options in ((), ("--details",), ("--all",), ("--details", "--all"))
    }
    for options, text in said.items():
        assert ("Checked 80 rules: " in text, "Critical path of the step" in text) == ("--details" in options,) * 2
        assert ("UNDER 1 %" in text) is ("--all" in options)
        assert "Fix 2 faults: 17.4 → 8.39 ms/step (2.1x faster)" in text
    assert len(said[()].splitlines()) <= 40


def test_the_report_goes_to_standard_output_and_nothing_else(trace: Path) -> None:
    done = run("analyze", trace)
    assert (done.returncode, done.stderr) == (0, "")
    first, _, second, *_ = done.stdout.splitlines()
    assert (first, second) == ("NVIDIA GPU · 3 of 4 recorded steps", f"  {STEP} the time (Python overhead 50 %)")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("how", [["--format", "json"], ["--json", "-"]])
def test_json_on_standard_output(trace: Path, how: list[str]) -> None:
    done = run("analyze", trace, *how)
    assert done.returncode == 0
    assert Diagnosis.from_json(done.stdout).steps is not None


def test_other_results_on_standard_output_are_all_there_is(trace: Path) -> None:
    page, sarif = (run("analyze", trace, f"--{form}", "-") for form in ("html", "sarif"))
    assert (page.stdout[:15], page.stdout[-8:], page.stderr) == ("<!doctype html>", "</html>\n", "")
    assert (json.loads(sarif.stdout)["version"], sarif.stderr) == ("2.1.0", "")


def test_files_and_the_terminal_in_one_go(trace: Path, tmp_path: Path) -> None:
    files = {form: tmp_path / f"out.{form}" for form in ("json", "markdown", "html")}
    done = run("analyze", trace, *(word for form, path in files.items() for word in (f"--{form}", path)))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"\n  {STEP}" in done.stdout
    assert json.loads(files["json"].read_text())["schema_version"] == 1
    assert files["markdown"].read_text().startswith(f"## {STEP}")
    assert files["html"].read_text().startswith("<!doctype html>")
    assert {*tmp_path.iterdir()} == {trace, *files.values()}


def test_a_recording_with_a_log_of_the_whole_run_has_both_in_its_report(trace: Path) -> None:
    names = ["step", "save", "evaluation"]
    window = ["window", 0, 1, 10, 100, 180, {"step": [10, 80, 8, 8, []]}, [0, 0, [], {}], [], 0, {}]
    log = [["begin", 1, 0, 1, 99, 1, names, [100, 0, 0]], window, ["end", "itself", 180, [0, 0, 0], "optimizer", []]]
    (trace.parent / "rank0.watch").write_bytes(b"".join(map(framed, log)))
    for form in ("terminal", "markdown"):
        done = run("analyze", trace.parent, "--format", form)
        assert done.returncode == 0
        whole, steps, _ = done.stdout.partition(STEP)
        assert "180 ns: start-up and compilation 55.6 %, training steps 44.4 %" in whole
        assert steps


def test_steps(trace: Path) -> None:
    done = run("analyze", trace, "--steps", "2-3", "--format", "json")
    steps = Diagnosis.from_json(done.stdout).steps
    assert steps.numbers == (2, 3)


@pytest.mark.parametrize("steps", ["x", "3-", "-", "5-4-3"])
def test_a_step_range_that_is_none(trace: Path, steps: str) -> None:
    refused(run("analyze", trace, "--steps", steps), "not a range of steps")


def test_steps_that_are_not_there(trace: Path) -> None:
    refused(run("analyze", trace, "--steps", "8-9"), "usable steps", "1-3")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.json", None, ["does not exist"]),
        ("empty.json", b"", ["is empty"]),
        ("text.txt", b"hello, world", ["not JSON"]),
        ("other.json", b'{"a": 1}', ["no traceEvents"]),
        ("nothing.json", b'{"traceEvents": []}', ["no events"]),
        ("nsight.sqlite", b"SQLite format 3\0....", ["SQLite"]),
        ("memory.pickle", b"\x80\x04\x95", ["pickle"]),
        ("bad.json.gz", b"\x1f\x8b\x08\x00broken", ["broken"]),
    ],
)
def test_unusable_input(tmp_path: Path, name: str, content: bytes | None, words: list[str]) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(run("analyze", tmp_path / name), name, *words)


def test_an_empty_folder(tmp_path: Path) -> None:
    refused(run("analyze", tmp_path), "holds no trace", "tensorboard_trace_handler")


def test_no_path_at_all() -> None:
    refused(run("analyze"), "Missing argument")


@pytest.mark.parametrize("form", ["json", "html", "sarif"])
def test_the_trace_is_never_overwritten(trace: Path, form: str) -> None:
    before = trace.read_bytes()
    for path in (trace, trace.parent):
        refused(run("analyze", path, f"--{form}", trace), "is an input")
    assert trace.read_bytes() == before


def test_an_output_that_cannot_be_written_is_refused_before_the_work(trace: Path, tmp_path: Path) -> None:
    refused(run("analyze", trace, "--json", tmp_path / "no" / "out.json"), "does not exist")
    refused(run("analyze", trace, "--markdown", tmp_path), "is a folder")
    refused(run("analyze", trace, "--json", "-", "--markdown", "-"), "Only one result")


@pytest.mark.slow
def test_a_full_disk_is_said_in_a_sentence(trace: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    command = f'"{sys.executable}" -m diagnose analyze "{trace}" > /dev/full'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (2, "Error: No space left on device.\n")


def test_a_trace_with_nothing_to_measure_is_inconclusive(tmp_path: Path) -> None:
    path = Drawing().span("unheard_of", "x", 0, 5).write(tmp_path / "trace.json")
    done = run("analyze", path, "--fail-over", "5%")
    assert done.returncode == 3
    assert "could be measured" in done.stdout
    assert "device work and ops" in done.stdout


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error(trace: Path) -> None:
    command = f'"{sys.executable}" -m diagnose analyze "{trace}" --format json | head -c 10'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stderr == ""


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "Interrupted."),
        (MemoryError(), 2, "not enough memory"),
        (PermissionError(13, "Permission denied"), 2, "Permission denied"),
        (ZeroDivisionError("secret"), 70, "diagnose itself failed (ZeroDivisionError)"),
    ],
)
def test_whatever_happens_ends_in_a_sentence(
    trace: Path,
    error: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("diagnose.pipeline.diagnose", fails)
    monkeypatch.setattr(sys, "argv", ["diagnose", "analyze", str(trace)])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert (end.value.code, shown.out) == (code, "")
    assert words in shown.err
    assert "secret" not in shown.err


def test_help_shows_an_example() -> None:
    assert "Example: diagnose analyze" in run("--help").stdout
    assert "Example: diagnose analyze" in run("analyze", "--help").stdout


def test_version() -> None:
    from diagnose import __version__

    assert run("--version").stdout.split() == ["diagnose,", "version", __version__]
