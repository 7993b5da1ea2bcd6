"""`diagnose ledger`, what `diagnose analyze` makes of it, and a real trial that leaves a line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

import diagnose
from diagnose import docs, ledger, pipeline
from diagnose.cli import group
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.ledger import Entry
from diagnose.contracts.trials import Range
from tests.capture.scripts import profile, script
from tests.cli.invoking import refused, run
from tests.cli.test_try import LOADER

PLANTED = Path(__file__).parents[2] / "sample_traces" / "planted"
SAMPLE = PLANTED / "mixed" / "three_faults_on_the_cpu" / "medium"
DEVICE = "Intel(R) Xeon(R) Processor"
"""Of the samples."""


def entry(rule: str, predicted: float, ratio: float, device: str = DEVICE) -> Entry:
    """A trial that measured so much of a predicted gain, a logarithm that is good for a tenth of itself."""
    gain = predicted * ratio
    return Entry(
        day="2026-11-26",
        rule=rule,
        tool_version="0.1.0",
        torch_version="2.13.0",
        device=device,
        predicted=Range(math.exp(0.9 * predicted), math.exp(predicted), math.exp(1.1 * predicted)),
        measured=Range(math.exp(gain - 0.01), math.exp(gain), math.exp(gain + 0.01)),
        verdict="keep",
    )


GAINS = [0.20, 0.22, 0.24, 0.26, 0.28, 0.30]
BIASED = [entry("unfused_optimizer", gain, ratio) for gain, ratio in zip(GAINS, [0.5, 0.4, 0.6] * 2, strict=True)]
RIGHT = [entry("dataloader_starvation", gain, 1.0) for gain in GAINS[:3]]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger of this test, which is not there yet."""
    monkeypatch.delenv("DIAGNOSE_NO_LEDGER")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "state" / "diagnose" / "ledger.jsonl"
    place.parent.mkdir(parents=True)
    return place


def test_the_path_of_the_file_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIAGNOSE_NO_LEDGER")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a long-name" / "of-a-folder" / ("x" * 100)))
    assert invoked("ledger").stdout.splitlines()[-1] == f"The file: {ledger.file()}"


@pytest.fixture
def filled(file: Path) -> Path:
    """Trials of two rules, and one that another device has made."""
    other = entry("unfused_optimizer", 0.1, 1.0, "Another")
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in [*BIASED, *RIGHT, other]))
    return file


def invoked(*words: object) -> Result:
    return CliRunner().invoke(group, list(map(str, words)))


def analyzed(*words: object) -> Diagnosis:
    done = invoked("analyze", SAMPLE, "--quiet", "--format", "json", *words)
    assert done.exit_code == 0, done.output
    return Diagnosis.from_json(done.stdout)


def test_a_ledger_that_is_empty_says_how_it_fills(file: Path) -> None:
    done = invoked("ledger")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        f"No trial is remembered yet: each fix that `diagnose try` tries leaves a line here.\nThe file: {file}\n"
    )


def test_a_ledger_that_is_switched_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_NO_LEDGER", "1")
    assert invoked("ledger").stdout == (
        "The ledger is switched off (DIAGNOSE_NO_LEDGER), or you have no home folder to keep it in.\n"
    )


def test_a_ledger_is_a_table_by_device_and_rule(filled: Path) -> None:
    """Half of six predicted gains came true: 0.5, and 4.032 standard errors of 0.0365."""
    with filled.open("a") as more:
        more.write("what is this\n" + '{"schema_version": 2}\n')
    assert invoked("ledger").stdout == (
        "On Another:\n"
        "  rule               trials  measured  compared  held  median  mean  verdicts\n"
        "  unfused_optimizer       1         1         1     1    1.00     -  1 keep\n"
        "\n"
        f"On {DEVICE}:\n"
        "  rule                   trials  measured  compared  held  median                 mean  verdicts\n"
        "  dataloader_starvation       3         3         3     3    1.00  1.00 (1.00 to 1.00)  3 keep\n"
        "  unfused_optimizer           6         6         6     0    0.50  0.50 (0.35 to 0.65)  6 keep\n"
        "\n"
        "Compared: predictions that a trial has measured well enough to tell the predicted gain from none.\n"
        "Held: the measured speed-up lies within the predicted range.\n"
        "Median and mean: measured over predicted gain, as logarithms of speed-ups; the interval is of 99 %.\n"
        "Corrected by it on that device: the savings of unfused_optimizer.\n"
        "\n"
        "1 line of the file is no trial, and skipped.\n"
        "1 line is of a later version of diagnose, and skipped.\n"
        f"The file: {filled}\n"
    )


@pytest.mark.parametrize("name", ["dataloader_starvation", "DL02", "dl02"])
def test_a_rule_by_name_or_code_as_json(filled: Path, name: str) -> None:
    done = invoked("ledger", "--json", "--rule", name)
    found = json.loads(done.stdout)
    jsonschema.validate(found, json.loads(docs.LEDGER_SCHEMA_FILE.read_text()))
    (one,) = found["rules"]
    assert (one["rule"], one["device"], one["verdicts"]) == ("dataloader_starvation", DEVICE, {"keep": 3})
    assert (one["record"]["compared"], one["record"]["held"], one["record"]["factor"]) == (3, 3, None)
    assert (found["file"], found["entries"]) == (str(filled), 10)


def test_a_rule_without_a_trial_is_refused(filled: Path) -> None:
    refused(
        run("ledger", "--rule", "XX99"),
        "No trial of XX99 is remembered. There are: unfused_optimizer, dataloader_starvation.",
    )


def test_a_ledger_that_cannot_be_read_is_said(file: Path) -> None:
    file.mkdir()
    refused(run("ledger"), f"The ledger {file} cannot be read: Is a directory. Make it readable, or delete it.")
    done = run("analyze", SAMPLE)
    assert done.returncode == 0
    assert f"The ledger {file} cannot be read: Is a directory. Savings are not corrected by trials." in done.stderr
    assert "this machine" not in done.stdout


def test_analyze_shows_what_held_and_corrects_what_is_biased(filled: Path) -> None:
    plain = {finding.rule: finding for finding in diagnose.analyze(SAMPLE).findings}
    first, second = analyzed().findings[:2]
    assert (first.rule, second.rule) == ("dataloader_starvation", "unfused_optimizer")
    assert plain[second.rule].rank_order == 1
    assert first.track_record is not None
    assert (first.track_record.held, first.track_record.compared) == (3, 3)
    assert (first.saving.likely_ns, first.saving_uncorrected) == (plain[first.rule].saving.likely_ns, None)
    before = plain[second.rule].saving
    assert second.saving_uncorrected is not None
    assert msgspec.structs.astuple(second.saving_uncorrected) == (before.low_ns, before.likely_ns, before.high_ns)
    step_ns = diagnose.analyze(SAMPLE).step_ns
    assert step_ns is not None
    assert second.saving.likely_ns == pytest.approx(step_ns * (1 - (1 - before.likely_ns / step_ns) ** 0.5), abs=2)
    text = " ".join(invoked("analyze", SAMPLE, "--quiet").stdout.split())
    assert "predicted 4.18 ms before correction by 6 trials here;" in text
    assert "(the optimizer's own ops are recorded); on this machine 0 of 6 predictions of this rule held." in text
    assert "without the profiler); on this machine 3 of 3 predictions of this rule held." in text


def test_what_never_gained_here_is_listed_as_minor_with_what_was_predicted(file: Path) -> None:
    some = [entry("unfused_optimizer", gain, 0.0) for gain in GAINS]
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in some))
    text = " ".join(invoked("analyze", SAMPLE, "--quiet").stdout.split())
    said = (
        "The optimizer updates parameters one by one: 0 (0.0 %); predicted 4.18 ms before correction by 6 trials here"
    )
    assert said in text


def test_all_reports_say_it(filled: Path, tmp_path: Path) -> None:
    done = invoked("analyze", SAMPLE, "-q", "--html", tmp_path / "r.html", "--markdown", tmp_path / "r.md")
    assert done.exit_code == 0, done.output
    page, text = (tmp_path / "r.html").read_text(), (tmp_path / "r.md").read_text()
    assert "; on this machine 0 of 6 predictions of this rule held</p>" in page
    assert "; on this machine 0 of 6 predictions of this rule held." in text
    assert "In 6 trials of this rule on this machine the gain was 0.50 times what was predicted (0.35 to 0.65)." in page
    assert "predicted 4.18 ms before correction by 6 trials here" in page
    assert "predicted 4.18 ms before correction by 6 trials here" in text


def test_analyze_without_the_ledger_is_as_ever_and_never_writes_it(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, library = filled.read_bytes(), diagnose.analyze(SAMPLE)
    assert library.findings[0].track_record is None
    assert analyzed("--no-ledger").findings == library.findings
    assert analyzed().findings != library.findings
    assert filled.read_bytes() == before
    monkeypatch.setenv("DIAGNOSE_NO_LEDGER", "1")
    assert analyzed().findings == library.findings


def test_trials_of_another_device_correct_nothing(file: Path) -> None:
    some = [msgspec.structs.replace(one, device="Another") for one in BIASED]
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in some))
    assert analyzed().findings == diagnose.analyze(SAMPLE).findings


@pytest.mark.slow
def test_ranks_are_corrected_in_all_processes() -> None:
    folder = PLANTED / "ranks" / "one_rank_computes_more" / "medium"
    rule = diagnose.analyze(folder).findings[0].rule
    trials = [msgspec.structs.replace(one, rule=rule) for one in BIASED]
    found = pipeline.diagnose([folder], jobs=2, trials=trials)
    assert found == pipeline.diagnose([folder], jobs=1, trials=trials)
    (first,) = [finding for finding in found.findings if finding.rule == rule]
    assert first.saving_uncorrected is not None


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_trial_is_remembered_and_the_next_analysis_shows_it(file: Path, tmp_path: Path) -> None:
    """Its first line is the prediction as it was before the second trial's analysis knew of any."""
    assert profile(tmp_path, script(tmp_path, LOADER).name).code == 0
    words = ["try", "out", "--fix", "dataloader_starvation", "--pairs", "2", "--yes", "--json", "trials.json"]
    done = run(*words, cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads((tmp_path / "trials.json").read_text())["trials"]
    (line,) = file.read_text().splitlines()
    found = json.loads(line)
    assert (found["rule"], found["verdict"]) == ("dataloader_starvation", "keep")
    assert (found["predicted"], found["measured"]) == (trial["predicted"], trial["measured"])
    assert "train" not in line
    held = int(found["predicted"]["low"] <= found["measured"]["likely"] <= found["predicted"]["high"])
    done = run("analyze", "out", cwd=tmp_path)
    shown = " ".join(done.stdout.split())
    compared = invoked("ledger", "--json").stdout
    if json.loads(compared)["rules"][0]["record"]["compared"]:
        assert f"on this machine {held} of 1 prediction of this rule held" in shown
    else:
        assert "on this machine" not in shown
