"""What holds for the code as a whole: what importing it costs, what it is packed from."""

import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.cli import COMMANDS

ROOT = Path(__file__).parents[1]

COMMAND_LINES = ["--help", "rules list", *(f"{name} --help" for name in COMMANDS)]


@pytest.mark.parametrize(
    "program",
    [
        "import diagnose",
        *(
            f"import sys; sys.argv[1:] = {command.split()}; from diagnose.cli import main; main()"
            for command in COMMAND_LINES
        ),
    ],
    ids=["import diagnose", *COMMAND_LINES],
)
def test_starting_loads_nothing_heavy(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # A line of -X importtime: "import time: self [us] | cumulative | name".
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "diagnose" in loaded
    assert loaded.isdisjoint({"libcst", "numpy", "pandas", "plotly", "torch"})


def test_every_package_is_installed() -> None:
    """setup.cfg names the packages one by one; a folder it misses would be missing from the wheel only."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    folders = {path.parent for path in ROOT.glob("diagnose/**/__init__.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(setup["options"]["packages"].split()) == packages | {"diagnose._rules"}


def test_the_picture_of_the_layers_shows_every_room() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    layers = re.findall(r"\w+", re.sub("#.*", "", setup["importlinter:contract:layers"]["layers"]))
    picture = (ROOT / "docs" / "pictures" / "layers.svg").read_text(encoding="utf-8")
    shown = re.findall(r"\w+", " ".join(re.findall(r'font-weight="600"[^>]*>([^<]*)<', picture)))
    assert sorted(shown) == sorted(set(layers) - {"__main__", "figures", "version"})


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    """By its place in the repository, the package or the documentation, or by its name alone; make writes two."""
    named = re.findall(
        r"[`(]((?:[\w.-]+/)+|[\w./-]+\.(?:py|md|cfg|toml|tsv|json))[`)]", (ROOT / page).read_text("utf-8")
    )
    names = {path.name for path in texts()}
    gone = [
        name
        for name in named
        if name not in names and not any((ROOT / folder / name).exists() for folder in (".", "diagnose", "docs"))
    ]
    assert set(gone) <= {"site/", "build/recordings/"}
    assert len(named) >= 10


@pytest.mark.parametrize(
    ("folders", "most"),
    [(("diagnose", "rules"), 72_000), (("tests",), 46_000), (("benchmarks", "sample_traces"), 20_700)],
)
def test_the_code_keeps_to_its_size(folders: tuple[str, ...], most: int) -> None:
    """Lines of Python. A new feature makes its own room."""
    files = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]
    assert sum(path.read_bytes().count(b"\n") for path in files) <= most


def test_files_are_few_and_none_is_long() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_bytes().count(b"\n") for path in ROOT.glob("diagnose/**/*.py")}
    assert len(lines) <= 350
    assert {path: count for path, count in lines.items() if count > 350} == {}


def texts() -> Iterator[Path]:
    """The text files of the repository, its top level and its folders, but nothing that make or git put there."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
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
