"""Which paths tools may read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diagnose.agents.paths import inside, matching, named, word
from diagnose.agents.refusals import Refused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a recording, beside which lies one that is not to be read."""
    for folder in (tmp_path / "here" / "run", tmp_path / "other"):
        folder.mkdir(parents=True)
        (folder / "rank0.trace.json").write_text("{}")
    return (tmp_path / "here").resolve()


@pytest.mark.parametrize("given", ["run", "./run", "run/../run", "run/rank0.trace.json", ".", "", "{root}/run"])
def test_what_lies_under_the_folder_may_be_read(root: Path, given: str) -> None:
    found = inside(root, given.format(root=root))
    assert found.is_absolute()
    assert found.is_relative_to(root)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ("../other", "outside"),
        ("run/../../other/rank0.trace.json", "outside"),
        ("{root}/../other", "outside"),
        ("/", "outside"),
        ("../none", "outside"),
        ("none", "does not exist"),
        ("run/*.json", "does not exist"),
        ("a\0b", "no path"),
        ("s3://bucket/run", "is a URL"),
        ("file:///etc/passwd", "is a URL"),
    ],
)
def test_nothing_else_may(root: Path, given: str, word: str) -> None:
    with pytest.raises(Refused, match=word) as refused:
        inside(root, given.format(root=root))
    assert str(refused.value).count("\n") == 0


def test_a_link_counts_where_it_leads(root: Path) -> None:
    (root / "out").symlink_to(root.parent / "other")
    (root / "in").symlink_to(root / "run")
    assert inside(root, "in") == root / "run"
    with pytest.raises(Refused, match="outside"):
        inside(root, "out")


def test_a_folder_with_a_trace_that_lies_elsewhere_is_refused(root: Path) -> None:
    (root / "run" / "python").symlink_to("/usr/bin/env")  # No trace: nothing reads it.
    assert inside(root, "run") == root / "run"
    (root / "run" / "rank1.trace.json").symlink_to(root.parent / "other" / "rank0.trace.json")
    with pytest.raises(Refused, match=r'holds the link "rank1\.trace\.json", which leads out'):
        inside(root, "run")


def test_links_in_a_circle_end(root: Path) -> None:
    (root / "run" / "loop.json").symlink_to(root / "run" / "loop.json")
    with pytest.raises(Refused):
        inside(root, "run/loop.json")
    assert inside(root, "run") == root / "run"


def test_a_name_is_never_taken_for_an_option(root: Path) -> None:
    assert named(root, root / "--write") == "./--write"
    assert named(root, root / "run") == "run"
    assert named(root, root) == "."
    assert word("--write*") == "./--write*"


def test_a_pattern_stands_for_paths_under_the_folder(root: Path) -> None:
    shutil.copytree(root / "run", root / "run-2")
    (root / "run[3]").mkdir()
    assert matching(root, "run*") == [root / "run", root / "run-2", root / "run[3]"]
    assert matching(root, "run") == [root / "run"]
    assert matching(root, "run[3]") == [root / "run[3]"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("../*", "may lead out"),
        ("{root}/../oth*", "may lead out"),
        ("/etc/*", "may lead out"),
        ("none*", "stands for nothing"),
        ("../other", "outside"),
        ("s3://bucket/*", "is a URL"),
        ("a*\0", "no path"),
        ("li*", "outside"),
    ],
)
def test_no_pattern_leads_out(root: Path, given: str, said: str) -> None:
    (root / "link").symlink_to(root.parent / "other")
    with pytest.raises(Refused, match=said):
        matching(root, given.format(root=root))
