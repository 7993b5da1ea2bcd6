"""What holds for the code as a whole: its sizes, what importing it costs, what it is packed from."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LONGEST_FILE = 300  # lines
LONGEST_FUNCTION = 80  # lines, from `def` to the last
LONG_FUNCTION = 60  # lines
LONG_FUNCTIONS = 0  # a ratchet: it only falls
P90_FUNCTION = 35  # lines

SOURCES = [path for folder in ("diagnose", "rules", "benchmarks") for path in sorted(ROOT.glob(f"{folder}/**/*.py"))]


def function_lengths() -> dict[str, int]:
    """Length in lines of every function, methods and nested ones included, by place."""
    return {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def longer_than(limit: int) -> list[str]:
    return [f"{place} ({length} lines)" for place, length in function_lengths().items() if length > limit]


def test_no_function_is_too_long() -> None:
    assert longer_than(LONGEST_FUNCTION) == []


def test_no_more_long_functions_than_before() -> None:
    found = longer_than(LONG_FUNCTION)
    assert len(found) <= LONG_FUNCTIONS, found


def test_most_functions_are_short() -> None:
    lengths = sorted(function_lengths().values())
    assert lengths[ceil(0.9 * len(lengths)) - 1] <= P90_FUNCTION


def test_no_file_is_too_long() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {path: count for path, count in lines.items() if count > LONGEST_FILE} == {}


@pytest.mark.parametrize(
    "program",
    ["import diagnose", "import sys; sys.argv[1:] = ['--help']; from diagnose.cli import main; main()"],
    ids=["import diagnose", "diagnose --help"],
)
def test_starting_loads_nothing_heavy(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # A line of -X importtime: "import time: self [us] | cumulative | name".
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "diagnose" in loaded
    assert loaded.isdisjoint({"pandas", "plotly", "torch"})


def test_every_package_is_installed() -> None:
    """setup.cfg names the packages one by one; a folder it misses would be missing from the wheel only."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    folders = {path.parent for path in ROOT.glob("diagnose/**/__init__.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(setup["options"]["packages"].split()) == packages | {"diagnose._rules"}


def texts() -> Iterator[Path]:
    """The text files of the repository, its top level and its folders, but nothing that make or git put there."""
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for folder in (".ci", "benchmarks", "diagnose", "rules", "sample_traces", "tests"):
        inside = ROOT.glob(f"{folder}/**/*")
        yield from (path for path in inside if path.is_file() and path.suffix not in {".pyc", ".gz"})


def test_no_path_of_a_developers_machine() -> None:
    homes = [f"/{name}/" for name in ("work", "root", "tmp/dev")]
    found = [
        f"{path.relative_to(ROOT)}: {home}"
        for path in texts()
        for home in homes
        if home in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []
