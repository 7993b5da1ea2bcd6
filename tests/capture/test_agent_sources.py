"""Which files a process has imported, and that one written since says so."""

import hashlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from diagnose.capture.agent import script_files


def imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What is told of a file that a module is of."""
    module = ModuleType("own_module")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "own_module", module)
    monkeypatch.setattr(script_files, "MOST_FILES", len(sys.modules))  # Those of all tests are the user's own.
    (told,) = (one for one in script_files.imported(None) if one["file"] == str(path))
    return told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that was written long ago."""
    path = tmp_path / "own.py"
    path.write_text("x = 1\n")
    os.utime(path, (0, 0))
    return path


def test_a_file_is_told_by_its_hash(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hashlib.sha256(b"x = 1\n").hexdigest()
    assert imported(path, monkeypatch) == {"file": str(path), "sha256": expected, "script": False}
    assert script_files.imported(str(path))[0] == {"file": str(path), "sha256": expected, "script": True}


def test_a_file_written_since_the_process_began_has_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was run is not what is there."""
    path.write_text("x = 2\n")
    os.utime(path, (2**32, 2**32))
    assert imported(path, monkeypatch)["sha256"] is None


def test_a_large_file_and_one_that_is_gone_have_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"#" * (script_files.LARGEST_BYTES + 1))
    os.utime(path, (0, 0))
    assert imported(path, monkeypatch)["sha256"] is None
    path.unlink()
    assert imported(path, monkeypatch)["sha256"] is None


def test_libraries_are_not_told() -> None:
    told = [str(one["file"]) for one in script_files.imported(None)]
    assert all("site-packages" not in one and not one.startswith(str(Path(os.__file__).parent)) for one in told)
    assert len(told) <= script_files.MOST_FILES
