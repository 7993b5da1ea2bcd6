"""`diagnose mcp` as a command: what it says where it cannot serve, and `analyze --brief`."""

import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.cli import COMMANDS
from tests.cli.invoking import refused, run
from tests.hostile import ROOT, SAMPLE

MAIN = "from diagnose.cli import main; main()"


@pytest.mark.parametrize("module", ["mcp", "mcp.server", "pydantic"])
def test_without_the_sdk_there_is_one_sentence(module: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = ['mcp']; from diagnose.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    refused(
        done, "Error: The SDK of the Model Context Protocol is not here. Install it: pip install torch-diagnose[mcp]"
    )


def test_help_needs_no_sdk() -> None:
    program = (
        "import sys; sys.modules['mcp'] = None; sys.argv[1:] = ['mcp', '-h']; from diagnose.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert COMMANDS["mcp"].split()[0] in done.stdout


def test_the_summary_goes_to_standard_output_beside_files(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, "--brief", "--json", tmp_path / "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("One step takes 17.4 ms without the profiler; ")
    assert "\n1. unfused_optimizer (OP01) saves 4.18 ms (24.1 %)\n" in done.stdout
    assert (tmp_path / "out.json").is_file()


def test_the_summary_of_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.json.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    refused(run("analyze", tmp_path / "bad.json.gz", "--brief"), "broken")
