"""What a user installs is what the checkout holds."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from diagnose.rulekit import page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def test_rules_are_found_in_a_checkout() -> None:
    assert page.built_in_rules() == ROOT / "rules"


def test_rules_and_the_schema_are_in_the_wheel_and_found_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "diagnose", source / "diagnose", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "rules", source / "rules")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)],
        check=True,
    )
    (wheel,) = tmp_path.glob("torch_diagnose-*.whl")
    unpacked = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    found = subprocess.run(
        [sys.executable, "-c", "from diagnose.rulekit import page; print(page.built_in_rules())"],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(unpacked)},
    ).stdout.strip()
    assert Path(found) == unpacked / "diagnose" / "_rules"
    assert (Path(found) / "README.md").read_text() == (ROOT / "rules" / "README.md").read_text()
    assert [path.relative_to(found) for path in page.files(Path(found))] == [
        path.relative_to(ROOT / "rules") for path in page.files(ROOT / "rules")
    ]
    assert (unpacked / "diagnose" / "diagnosis.schema.json").is_file()
    assert (unpacked / "diagnose" / "py.typed").is_file()
