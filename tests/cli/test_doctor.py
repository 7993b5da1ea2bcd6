"""`diagnose doctor` as users run it, on this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from diagnose.capture.doctor import Check
from diagnose.cli import COMMANDS, group
from diagnose.cli.doctor import report
from tests.cli.invoking import refused, run
from tests.hostile import ROOT


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    done = run("doctor", cwd=tmp_path)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].split()[1] == "torch"
    has_torch = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    assert lines[0].split()[0] == ("ok" if has_torch else "missing")
    assert done.returncode == (0 if has_torch else 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.exhaustive
def test_json_says_the_same(tmp_path: Path) -> None:
    done = run("doctor", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert said["can_record"] == (done.returncode == 0)
    assert [check["name"] for check in said["checks"]][:1] == ["torch"]
    text = run("doctor", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in text[: len(said["checks"])]] == [check["state"] for check in said["checks"]]


def test_a_torch_that_breaks(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot import it: ImportError: libcudart.so.12: cannot open shared object file" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "diagnose-runs").write_text("")
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 2
    assert f"missing  folder        {tmp_path / 'diagnose-runs'} is not writable: Not a directory" in done.stdout


FOUND = [
    Check("torch", "ok", "2.13.0, built for CUDA 12.8"),
    Check("shared memory", "limited", "/dev/shm: 67.1 MB free", "Give more."),
    Check("nsys", "missing", "not found", "Install it."),
]


def test_the_layout() -> None:
    runner = CliRunner()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diagnose.capture.doctor.checks", lambda: FOUND)
        done = runner.invoke(group, ["doctor"])
        colored = runner.invoke(group, ["doctor"], color=True)
        patch.setenv("NO_COLOR", "1")
        plain = runner.invoke(group, ["doctor"], color=True)
    assert done.exit_code == 0
    assert done.output == (
        "ok       torch          2.13.0, built for CUDA 12.8\n"
        "limited  shared memory  /dev/shm: 67.1 MB free\n"
        "missing  nsys           not found\n"
        "\n"
        "How to fix:\n"
        "shared memory  Give more.\n"
        "nsys           Install it.\n"
        "\n"
        "This machine can record trainings.\n"
    )
    assert "\x1b[33mlimited\x1b[0m" in colored.output
    assert plain.output == done.output


def test_nothing_to_mend() -> None:
    assert report(FOUND[:1], recordable=True).splitlines()[1:] == ["", "This machine can record trainings."]


MAIN = "from diagnose.cli import main; main()"


@pytest.mark.parametrize("module", ["mcp", "mcp.server", "pydantic"])
def test_without_the_sdk_there_is_one_sentence(module: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = ['mcp']; from diagnose.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    refused(done, "Error: The Model Context Protocol SDK is missing. Run: pip install torch-diagnose[mcp]")


def test_help_needs_no_sdk() -> None:
    program = (
        "import sys; sys.modules['mcp'] = None; sys.argv[1:] = ['mcp', '-h']; from diagnose.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert COMMANDS["mcp"].split()[0] in done.stdout
