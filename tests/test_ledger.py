"""The ledger: what a trial leaves, several writers, hostile lines, folders that cannot be used, and what it says."""

import json
import math
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

import diagnose
from diagnose import docs, ledger
from diagnose.cli import group
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.ledger import Entry, RuleTrials, device_of, named
from diagnose.contracts.trials import Range, Report, Trial, Verdict
from diagnose.replay.saving import Basis
from diagnose.trace.manifest import DeviceState, Host, Manifest
from diagnose.version import __version__
from tests.capture.scripts import profile, script
from tests.cli.invoking import refused, run
from tests.cli.test_try import LOADER
from tests.hostile import SAMPLE


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    """Its first findings are unfused_optimizer and dataloader_starvation."""
    return diagnose.analyze(SAMPLE)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DIAGNOSE_NO_LEDGER")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "diagnose" / "ledger.jsonl"


MEASURED = Range(1.2, 1.25, 1.31)


def trial(*numbers: int, measured: Range | None = MEASURED, verdict: Verdict = "keep") -> Trial:
    names = {1: "unfused_optimizer", 2: "dataloader_starvation"}
    return Trial(
        rule=" + ".join(names[number] for number in numbers),
        numbers=numbers,
        fix="Use the fused Adam.",
        trial=("patch:torch.optim(fused=True)",),
        injected="Adam at secret.py:12: fused None -> True",
        predicted=Range(1.0, 1.01, 1.02),
        measured=measured,
        pairs=3,
        steps=30,
        losses="rounding",
        losses_compared=42,
        peak_bytes=None,
        warmup_s=None,
        pays_after_steps=None,
        verdict=verdict,
        why="",
    )


def report(*some: Trial, complete: bool = True, together: Trial | None = None) -> Report:
    made = {"trials": some, "together": together, "complete": complete}
    return Report(tool_version=__version__, baseline=None, keep=(), not_tried=(), notes=(), **made)


def remember(found: Report, diagnosis: Diagnosis) -> list[str]:
    said = list[str]()
    ledger.remember(found, diagnosis, said.append)
    return said


LINE = {
    "schema_version": 1,
    "day": "2026-11-26",
    "rule": "unfused_optimizer",
    "tool_version": "0.1.0",
    "torch_version": None,
    "device": "A GPU",
    "predicted": {"low": 1.1, "likely": 1.2, "high": 1.3},
    "measured": None,
    "verdict": "not_injected",
}


def test_a_trial_leaves_a_line(file: Path, diagnosis: Diagnosis) -> None:
    assert remember(report(trial(1)), diagnosis) == []
    (line,) = file.read_text().splitlines()
    found = json.loads(line)
    assert len(found.pop("day")) == len("2026-11-26")
    assert found == {
        "schema_version": 1,
        "rule": "unfused_optimizer",
        "tool_version": __version__,
        "torch_version": "2.13.0+cpu",
        "device": "Intel(R) Xeon(R) Processor",
        "predicted": {"low": 1.0, "likely": 1.01, "high": 1.02},
        "measured": {"low": 1.2, "likely": 1.25, "high": 1.31},
        "verdict": "keep",
    }
    (entry,) = ledger.read().entries
    assert (entry.predicted, entry.measured) == (Range(1.0, 1.01, 1.02), MEASURED)
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_what_is_only_a_bound_is_no_prediction(file: Path, diagnosis: Diagnosis) -> None:
    first = diagnosis.findings[0]
    bound = msgspec.structs.replace(first, saving=msgspec.structs.replace(first.saving, basis=Basis.BOUNDED))
    remember(report(trial(1)), msgspec.structs.replace(diagnosis, findings=(bound,)))
    (entry,) = ledger.read().entries
    assert (entry.predicted, entry.measured) == (None, MEASURED)


def test_lines_are_added_and_stay(file: Path, diagnosis: Diagnosis) -> None:
    remember(report(trial(1)), diagnosis)
    first = file.read_bytes()
    remember(report(trial(2), trial(1, verdict="no_gain")), diagnosis)
    assert file.read_bytes().startswith(first)
    assert [(entry.rule, entry.verdict) for entry in ledger.read().entries] == [
        ("unfused_optimizer", "keep"),
        ("dataloader_starvation", "keep"),
        ("unfused_optimizer", "no_gain"),
    ]


def test_what_was_interrupted_counts_if_it_was_measured(file: Path, diagnosis: Diagnosis) -> None:
    """Ctrl-C leaves a trial without a verdict; the one before had ended. Fixes together are of no rule."""
    late = trial(2, measured=None, verdict="inconclusive")
    remember(report(trial(1, measured=None, verdict="not_injected"), late, complete=False), diagnosis)
    assert [entry.rule for entry in ledger.read().entries] == ["unfused_optimizer"]
    remember(report(msgspec.structs.replace(late, measured=Range(0.9, 1, 1.1)), complete=False), diagnosis)
    assert [entry.rule for entry in ledger.read().entries][1:] == ["dataloader_starvation"]
    remember(report(late, trial(1, 2), together=trial(1, 2)), diagnosis)
    assert [entry.rule for entry in ledger.read().entries][2:] == ["dataloader_starvation"]


def test_an_interval_beyond_all_bounds_is_no_measurement(file: Path, diagnosis: Diagnosis) -> None:
    remember(report(trial(1, measured=Range(0.0, 1.0, 1e300), verdict="inconclusive")), diagnosis)
    (entry,) = ledger.read().entries
    assert entry.measured is None


def test_nothing_is_written_where_nothing_was_tried_or_it_is_switched_off(
    file: Path, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(report(), diagnosis)
    assert not file.parent.exists()
    monkeypatch.setenv("DIAGNOSE_NO_LEDGER", "1")
    remember(report(trial(1)), diagnosis)
    assert not file.parent.exists()
    assert ledger.read() == ledger.Ledger(None)


def test_a_folder_that_cannot_be_used_is_said_and_fails_nothing(
    file: Path, tmp_path: Path, diagnosis: Diagnosis
) -> None:
    (tmp_path / "state").write_text("")
    (said,) = remember(report(trial(1)), diagnosis)
    assert said == f"these trials could not be remembered in {file}: Not a directory"


HOSTILE = [
    b"",
    b"no json",
    b"{}",
    b"[" * 100_000,
    b"\x00\xff\xfe",
    b"null",
    json.dumps({**LINE, "verdict": "wonderful"}).encode(),
    json.dumps({**LINE, "schema_version": 0}).encode(),
    json.dumps({**LINE, "rule": "\x1b[2J"}).encode(),
    json.dumps({**LINE, "rule": "x" * 10_000}).encode(),
    json.dumps({**LINE, "day": "yesterday"}).encode(),
    json.dumps({**LINE, "predicted": {"low": 2, "likely": 1, "high": 3}}).encode(),
    json.dumps({**LINE, "predicted": {"low": -1, "likely": 1, "high": 3}}).encode(),
    json.dumps({**LINE, "measured": {"low": 1, "likely": 1, "high": 1e200}}).encode(),
    json.dumps(LINE).encode()[:-10],
]


def test_damaged_lines_are_skipped_counted_and_left(file: Path, diagnosis: Diagnosis) -> None:
    """The last one does not end: the next entry begins on a line of its own."""
    file.parent.mkdir(parents=True)
    newer = json.dumps({"schema_version": 2, "verdict": "wonderful"}).encode()
    good = json.dumps({**LINE, "new": "field"}).encode()
    before = b"\n".join([good, newer, *HOSTILE])
    file.write_bytes(before)
    found = ledger.read()
    assert (len(found.entries), found.skipped) == (1, len(HOSTILE))
    remember(report(trial(1)), diagnosis)
    assert file.read_bytes().startswith(before + b"\n{")
    found = ledger.read()
    assert (len(found.entries), found.skipped) == (2, len(HOSTILE))


WRITER = """
import sys
from pathlib import Path
import msgspec
from diagnose import ledger
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Report

diagnosis = Diagnosis.from_json(Path(sys.argv[1]).read_bytes())
report = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Report)
sys.stdin.read()
for _ in range(200):
    ledger.remember(report, diagnosis, lambda said: sys.exit(said))
"""


@pytest.mark.slow
def test_processes_that_write_at_once_lose_and_damage_nothing(file: Path, tmp_path: Path, diagnosis: Diagnosis) -> None:
    """Four, which begin together when their input ends."""
    (tmp_path / "diagnosis.json").write_text(diagnosis.to_json())
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(report(trial(1), trial(2))))
    command = [sys.executable, "-c", WRITER, str(tmp_path / "diagnosis.json"), str(tmp_path / "report.json")]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
    for writer in writers:
        writer.stdin.close()
    assert [writer.wait(600) for writer in writers] == [0, 0, 0, 0]
    found = ledger.read()
    assert (len(found.entries), found.skipped) == (4 * 200 * 2, 0)
    pairs = [(one.rule, other.rule) for one, other in zip(found.entries[::2], found.entries[1::2], strict=True)]
    assert set(pairs) == {("unfused_optimizer", "dataloader_starvation")}


def test_the_device_is_the_gpu_where_one_was_used() -> None:
    host = Host(cpu="A CPU")
    assert device_of(Manifest(host=host)) == "A CPU"
    assert device_of(Manifest(host=host, devices=(DeviceState(index=0, name="A GPU"),))) == "A GPU"
    assert device_of(Manifest(host=host, devices=(DeviceState(index=0),))) == "A CPU"
    assert device_of(Manifest()) is None


def test_a_name_is_what_can_be_printed_of_it() -> None:
    assert named("\x1b[2JA \nGPU" + "x" * 500) == "[2JA GPU" + "x" * 192
    assert named("\n") is None


def test_an_entry_names_nothing_of_the_run() -> None:
    """A field more is a decision, not an accident."""
    assert Entry.__struct_fields__ == tuple(LINE)


def around(gain: float, half: float) -> Range:
    return Range(math.exp(gain - half), math.exp(gain), math.exp(gain + half))


DEVICE = "Intel(R) Xeon(R) Processor"


def tried(
    predicted: float | None = 0.2,
    measured: float | None = 0.2,
    half: float = 0.02,
    verdict: Verdict = "keep",
    rule: str = "unfused_optimizer",
    device: str = DEVICE,
) -> Entry:
    """Gains as logarithms; a prediction is good for a tenth of itself."""
    return Entry(
        day="2026-11-26",
        rule=rule,
        tool_version="0.1.0",
        torch_version="2.13.0",
        device=device,
        predicted=None if predicted is None else around(predicted, predicted / 10),
        measured=None if measured is None else around(measured, half),
        verdict=verdict,
    )


def told(*entries: Entry) -> RuleTrials:
    (one,) = ledger.rules_of(entries)
    return one


def test_a_prediction_held_if_the_likely_measurement_lies_within_it() -> None:
    """0.18 to 0.22: a measurement that reaches into it from outside does not help."""
    assert [told(tried(measured=gain)).held for gain in (0.17, 0.19, 0.2, 0.21, 0.23)] == [0, 1, 1, 1, 0]


def test_the_ratio_is_of_gains() -> None:
    """0.5, 1 and 1.2."""
    found = told(tried(0.2, 0.1), tried(0.3, 0.3), tried(0.25, 0.3))
    assert (found.trials, found.measured, found.compared, found.held) == (3, 3, 3, 1)
    assert found.ratio_median == pytest.approx(1.0)


@pytest.mark.parametrize(
    "one",
    [
        tried(measured=None, verdict="inconclusive"),
        tried(measured=None, verdict="not_injected"),
        tried(verdict="changes_numbers"),
        tried(verdict="out_of_memory"),
        tried(verdict="not_injected"),
        tried(predicted=None),
        tried(predicted=0.0),
        tried(half=0.21),
    ],
    ids=["nothing measured", "not injected", "other numbers", "no memory", "void later", "bound", "no gain", "noise"],
)
def test_what_tells_nothing_is_counted_as_a_trial_alone(one: Entry) -> None:
    found = told(*[one] * 7)
    assert (found.trials, found.compared, found.held, found.ratio_median) == (7, 0, 0, None)


def test_a_fix_that_gained_nothing_or_was_slower_counts() -> None:
    """Noise is judged by the prediction: else only what went well would be left."""
    found = told(tried(0.2, 0.0, verdict="no_gain"), tried(0.3, -0.1, verdict="slower"))
    assert (found.compared, found.held) == (2, 0)
    assert found.ratio_median == pytest.approx((0 - 1 / 3) / 2)


def test_a_recording_that_is_tried_again_counts_once_as_it_was_measured_last() -> None:
    found = told(tried(0.2, 0.1), tried(0.3, 0.3), tried(0.2, 0.2), tried(0.2, half=1.0))
    assert (found.trials, found.measured, found.compared, found.held) == (4, 4, 2, 2)


GAINS = [0.20, 0.22, 0.24, 0.26, 0.28, 0.30]
BIASED = [tried(gain, gain * ratio, 0.01) for gain, ratio in zip(GAINS, [0.5, 0.4, 0.6] * 2, strict=True)]
RIGHT = [tried(gain, gain, 0.01, rule="dataloader_starvation") for gain in GAINS[:3]]


def test_the_path_of_the_file_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIAGNOSE_NO_LEDGER")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a long-name" / "of-a-folder" / ("x" * 100)))
    assert invoked("ledger").stdout.splitlines()[-1] == f"The file: {ledger.file()}"


@pytest.fixture
def filled(file: Path) -> Path:
    """Trials of two rules, and one that another device has made."""
    other = tried(0.1, 0.1, 0.01, device="Another")
    file.parent.mkdir(parents=True)
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
    file.mkdir(parents=True)
    refused(run("ledger"), f"Cannot read the ledger {file}: Is a directory. Make it readable or delete it.")


@pytest.mark.exhaustive
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
