"""What the README shows is what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from diagnose.cli import COMMANDS, group

README = Path(__file__).parent.parent / "README.md"


def block(start: str, end: str) -> str:
    """The text between two markers."""
    return README.read_text(encoding="utf-8").split(start)[1].split(end)[0].strip("\n")


def test_the_help_is_the_command_s(request: pytest.FixtureRequest) -> None:
    """Rewrite it with --update-golden."""
    pages = [CliRunner().invoke(group, [name, "--help"], prog_name="diagnose").output for name in COMMANDS]
    text = "\n".join(f"```\n{page.strip()}\n```" for page in pages)
    if request.config.getoption("--update-golden"):
        whole = README.read_text(encoding="utf-8")
        new = re.sub(
            "(<!-- help:start -->\n).*(<!-- help:end -->)",
            lambda found: f"{found[1]}{text}\n{found[2]}",
            whole,
            flags=re.DOTALL,
        )
        README.write_text(new, encoding="utf-8")
    assert block("<!-- help:start -->", "<!-- help:end -->") == text


def test_every_command_s_line_in_the_help_is_its_own_first_line() -> None:
    for name, line in COMMANDS.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == line


def test_the_report_is_a_real_one(corpus: Path) -> None:
    """Every line of it, in order; "..." stands for lines left out."""
    trace = corpus / "kineto/tensorboard/resnet50_autograd_0_workers.json.gz"
    printed = iter(CliRunner().invoke(group, ["analyze", str(trace)]).output.splitlines())
    shown = block("$ diagnose analyze trace.json.gz\n", "```").splitlines()
    assert len(shown) > 20
    for line in shown:
        assert line == "..." or line in printed, line


def test_the_table_of_functions_is_a_real_one() -> None:
    command = "analyze sample_traces/divergence_derived_for_every_product/strong"
    printed = CliRunner().invoke(group, command.replace("sample_traces", str(README.parent / "sample_traces")).split())
    shown = block(f"$ diagnose {command}\n", "```").replace("...", "").strip("\n")
    assert len(shown.splitlines()) > 5
    assert shown in printed.output


def test_the_make_targets_it_names_exist() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z]+)", README.read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
