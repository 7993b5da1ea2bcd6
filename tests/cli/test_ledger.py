"""`diagnose ledger`, and a real trial that leaves a line."""

import json
import math
from pathlib import Path

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

from diagnose import docs, ledger
from diagnose.cli import group
from diagnose.contracts.ledger import Entry
from diagnose.contracts.trials import Range
from tests.capture.scripts import profile, script
from tests.cli.invoking import refused, run
from tests.cli.test_try import LOADER

DEVICE = "Intel(R) Xeon(R) Processor"


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


def test_a_ledger_that_is_empty_says_how_it_fills(file: Path) -> None:
    done = invoked("ledger")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (f"The ledger is empty. Run `diagnose try` to fill it.\nThe file: {file}\n")


def test_a_ledger_that_is_switched_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_NO_LEDGER", "1")
    assert invoked("ledger").stdout == ("The ledger is off (DIAGNOSE_NO_LEDGER), or you have no home folder.\n")


def test_a_ledger_is_a_table_by_device_and_rule(filled: Path) -> None:
    """Half of six predicted gains came true."""
    with filled.open("a") as more:
        more.write("what is this\n" + '{"schema_version": 2}\n')
    assert invoked("ledger").stdout == (
        "On Another:\n"
        "  rule               trials  measured  compared  in range  median  verdicts\n"
        "  unfused_optimizer       1         1         1         1    1.00  1 keep\n"
        "\n"
        f"On {DEVICE}:\n"
        "  rule                   trials  measured  compared  in range  median  verdicts\n"
        "  dataloader_starvation       3         3         3         3    1.00  3 keep\n"
        "  unfused_optimizer           6         6         6         0    0.50  6 keep\n"
        "\n"
        "Compared: trials precise enough to tell the predicted gain from none.\n"
        "In range: the measured speed-up lies within the predicted range.\n"
        "Median: measured gain divided by predicted gain (logarithms of speed-ups).\n"
        "\n"
        "Unreadable lines, or from another version of diagnose: 2.\n"
        f"The file: {filled}\n"
    )


@pytest.mark.parametrize("name", ["dataloader_starvation", "DL02", "dl02"])
def test_a_rule_by_name_or_code_as_json(filled: Path, name: str) -> None:
    done = invoked("ledger", "--json", "--rule", name)
    found = json.loads(done.stdout)
    jsonschema.validate(found, json.loads(docs.schema_file("ledger").read_text()))
    (one,) = found["rules"]
    assert (one["rule"], one["device"], one["verdicts"]) == ("dataloader_starvation", DEVICE, {"keep": 3})
    assert (one["compared"], one["held"], one["ratio_median"]) == (3, 3, pytest.approx(1.0))
    assert (found["file"], found["entries"]) == (str(filled), 10)


def test_a_rule_without_a_trial_is_refused(filled: Path) -> None:
    refused(
        run("ledger", "--rule", "XX99"),
        "The ledger has no trial of XX99. It has: unfused_optimizer, dataloader_starvation.",
    )


def test_a_ledger_that_cannot_be_read_is_said(file: Path) -> None:
    file.mkdir()
    refused(run("ledger"), f"Cannot read the ledger {file}: Is a directory. Make it readable or delete it.")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_trial_is_remembered(file: Path, tmp_path: Path) -> None:
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
