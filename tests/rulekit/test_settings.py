"""Settings near the traces: which file counts, what is refused, what is left alone."""

import sys
from pathlib import Path

import pytest

from diagnose.rulekit import settings
from diagnose.rulekit.settings import Settings, SettingsError

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot read TOML: setup.cfg is read")


def test_none() -> None:
    assert settings.near(Path("/")) == Settings()


def test_setup_cfg(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text(
        "[diagnose]\nselect=DL, scalar_syncs\nignore =\n  DL05\n  HD\ndataloader_starvation.WORTH_SHARE = 0.2"
    )
    found = settings.near(tmp_path / "runs" / "rank0.json.gz")
    assert found == Settings(("DL", "scalar_syncs"), ("DL05", "HD"), {"dataloader_starvation.WORTH_SHARE": 0.2})


@needs_toml
def test_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.diagnose]\nselect = ["DL"]\n'
        '"scalar_syncs.EVERY_STEPS" = 4\n[tool.diagnose.launch_bound]\nLAUNCHES = 100\n'
    )
    found = settings.near(tmp_path)
    assert found.select == ("DL",)
    assert found.thresholds == {"scalar_syncs.EVERY_STEPS": 4.0, "launch_bound.LAUNCHES": 100.0}


def test_the_nearest_file_counts_alone(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "setup.cfg").write_text("[diagnose]\nselect = DL\n")
    (inner / "setup.cfg").write_text("[diagnose]\nignore = HD\n")
    assert settings.near(inner / "trace.json") == Settings(ignore=("HD",))


@pytest.mark.parametrize(
    "text", ["[metadata]\nname = x\n", "not a settings file at all\n", "[a]\n[a]\n", "\x00\xff", ""]
)
def test_files_of_others_are_left_alone(tmp_path: Path, text: str) -> None:
    for name in ("setup.cfg", "pyproject.toml"):
        (tmp_path / name).write_text(text, encoding="latin-1")
    assert settings.near(tmp_path) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [("setup.cfg", "[diagnose\nselect = DL\n"), ("pyproject.toml", "[tool.diagnose\nselect = ['DL']\n")],
)
def test_a_damaged_file_of_ours_is_refused(tmp_path: Path, name: str, text: str) -> None:
    if name == "pyproject.toml" and sys.version_info < (3, 11):
        pytest.skip("no TOML in the standard library")
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=f"{name} cannot be read: "):
        settings.near(tmp_path)


def test_a_comment_behind_a_value(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("[diagnose]\nlaunch_bound.LAUNCHES = 5e1  # few\n")
    assert settings.near(tmp_path).thresholds == {"launch_bound.LAUNCHES": 50.0}


def test_of_two_files_in_a_folder_the_pyproject_counts(tmp_path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("no TOML in the standard library")
    (tmp_path / "setup.cfg").write_text("[diagnose]\nselect = DL\n")
    (tmp_path / "pyproject.toml").write_text("[tool.diagnose]\nignore = ['HD']\n")
    assert settings.near(tmp_path) == Settings(ignore=("HD",))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("treshold = 3", "known are select, ignore, and thresholds"),
        ("rules = mine", "runs code: ask for them by --rules"),
        ("launch_bound.LAUNCHES = many", "which is no number"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_file_s_name(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "setup.cfg").write_text(f"[diagnose]\n{line}\n")
    with pytest.raises(SettingsError, match=words) as refusal:
        settings.near(tmp_path)
    assert str(tmp_path / "setup.cfg") in str(refusal.value)
