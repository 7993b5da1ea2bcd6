"""The examples in the guide to writing rules work: in a folder, and as a package that pip installs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diagnose.cli import group
from diagnose.cli.rules import of_drawing
from diagnose.rulekit import settings, testing
from diagnose.rulekit.settings import Settings, SettingsError
from diagnose.synthetic import notation
from tests.watched.logs import MS, S, interval, recorded

GUIDE = (Path(__file__).parents[2] / "docs" / "writing-rules.md").read_text(encoding="utf-8")


def shown(path: str, language: str = "python") -> str:
    block = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE).search(GUIDE, GUIDE.index(f"`{path}`"))
    return block[1]


@pytest.mark.parametrize("name", ["checkpoint_in_every_step", "slow_optimizer"])
def test_its_examples_hold(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(shown(f"my-rules/{name}.py"), encoding="utf-8")
    ran = {example.name: testing.failure(example, of_drawing) for example in testing.examples(tmp_path)}
    assert ran == {f"{name}::fires[0]": None, f"{name}::silent[0]": None}


def test_its_rule_on_a_run_finds_what_costs_a_watched_run(tmp_path: Path) -> None:
    own, run = tmp_path / "own", tmp_path / "run"
    own.mkdir()
    run.mkdir()
    (own / "slow_optimizer.py").write_text(shown("my-rules/slow_optimizer.py"), encoding="utf-8")
    recorded(run, [interval(20 * MS, optimizer=10 * MS, loader=8 * MS)] * 1000)

    def analyzed(*more: str) -> dict[str, Any]:
        done = CliRunner().invoke(group, ["analyze", str(run), "--rules", str(own), "--json", "-", *more])
        return {one["rule"]: one for one in json.loads(done.stdout)["findings"]}

    one = analyzed("--select", "MY02")["slow_optimizer"]
    assert (one["kind"], one["ranks"]) == ("slow_optimizer", [0])
    assert one["evidence"][0]["text"] == "The optimizer takes 50.0 % of the steps: 10.0 s (47.6 % of the run)."
    assert one["saving"] == {"low_ns": 0, "likely_ns": 5 * S, "high_ns": 9 * S, "basis": "at_most"}
    assert set(analyzed()) == {"slow_optimizer", "waiting_for_data"}
    assert set(analyzed("--ignore", "RU01")) == {"slow_optimizer"}
    refused = CliRunner().invoke(group, ["analyze", str(run), "--select", "MY02"])
    assert "There is no rule 'MY02'" in refused.output


def test_it_names_every_kind_of_edit_and_example() -> None:
    for name in ("Shorten", "Remove", "Detach", "Move", "Replace", "Between", "Fires", "Silent", "CannotTell"):
        assert f"`{name}" in GUIDE, name


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the package that the guide shows, as pip installs it."""
    source, site = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    files = {
        "pyproject.toml": shown("pyproject.toml", "toml"),
        "our_rules/__init__.py": "",
        "our_rules/checks/__init__.py": "",
        **{path: shown(path) for path in ("our_rules/checks/_finite.py", "our_rules/checks/checks_for_nan.py")},
    }
    for path, text in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True)
    return site


def diagnose(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(installed), *filter(None, (os.environ.get("PYTHONPATH"),))))
    command = [sys.executable, "-m", "diagnose", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})


def synthetic(folder: Path) -> str:
    (rank,) = notation.ranks("4 steps of 100\n2 threads, 4 cores\ncpu  aten::isnan 0-20 | aten::mm 20-90")
    path = folder / "trace.json"
    path.write_bytes(notation.trace(rank))
    return str(path)


@pytest.mark.slow
def test_the_rules_of_an_installed_package_run(installed: Path, tmp_path: Path) -> None:
    """Its fact lies beside its rule; a step of 100 ms has 20 of looking for numbers that are not finite."""
    trace = synthetic(tmp_path)
    assert "OUR01 checks_for_nan" in diagnose(installed, "rules", "list").stdout
    assert "every hundred steps" in diagnose(installed, "rules", "show", "OUR01").stdout
    said = diagnose(installed, "analyze", trace, "--select", "OUR01")
    assert "Such looks take 20.0 ms a step" in said.stdout
    examples = diagnose(installed, "rules", "test", str(installed / "our_rules" / "checks"))
    assert (examples.returncode, examples.stderr) == (0, "")


@pytest.mark.slow
def test_a_package_whose_rules_cannot_be_found_is_named(installed: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "gone-1.0.dist-info").mkdir(parents=True)
    (site / "gone-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n")
    (site / "gone-1.0.dist-info" / "entry_points.txt").write_text("[diagnose.rules]\nall = gone.rules\n")
    for arguments in (("rules", "list"), ("analyze", synthetic(tmp_path))):
        said = diagnose(site, *arguments)
        assert "gone.rules cannot be imported" in said.stderr
        assert said.returncode in (1, 2)
        assert "Traceback" not in said.stderr


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
