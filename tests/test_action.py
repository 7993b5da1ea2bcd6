"""The action of GitHub, the workflow and the job of GitLab that docs/ci has: what can run here runs.

They run from a clean checkout, in a Python that has only what they install.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnose.contracts.diagnosis import Diagnosis
from tests import actions
from tests.actions import Ran

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
DOCS = ROOT / "docs" / "ci"
SAMPLE = ROOT / "sample_traces" / "planted" / "data_loading" / "archive_opened_for_every_item" / "medium"
TORCH = re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)

TRAINING = """
import sys, time, torch

assert sys.argv[1:] == ["--name", "two words; touch injected"], sys.argv
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(500):
    time.sleep(0.002)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""
SCRIPT = "train.py --name 'two words; touch injected'"


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("vendor.github-actions", ROOT / "action.yml"),
        ("vendor.github-workflows", DOCS / "github.yml"),
        ("vendor.gitlab-ci", DOCS / "gitlab.yml"),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_each_file_is_what_its_service_reads(schema: str, path: Path) -> None:
    """By the schemas that the package check-jsonschema brings along."""
    pytest.importorskip("check_jsonschema")
    words = ["-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_input_is_part_of_a_script() -> None:
    """It would be run as code. Files with the name of a variable are data."""
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"], step["name"]
        assert step["shell"] == "bash"
        script = subprocess.run(["bash", "-n"], input=step["run"], capture_output=True, text=True, check=False)
        assert (script.returncode, script.stderr) == (0, ""), step["name"]


def test_every_input_is_used_and_every_output_is_made() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    for name, one in ACTION["outputs"].items():
        step = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", one["value"])
        assert step, name
        assert step[1] in [done.get("id") for done in ACTION["runs"]["steps"]]


def test_the_workflow_sets_inputs_that_there_are() -> None:
    used = re.findall(r"steps\.diagnose\.outputs\.(\w+)", (DOCS / "github.yml").read_text(encoding="utf-8"))
    assert used
    assert set(used) <= set(ACTION["outputs"])
    assert set(_diagnose_step()["with"]) <= set(ACTION["inputs"])


def _diagnose_step() -> dict[str, Any]:
    workflow = yaml.safe_load((DOCS / "github.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    (step,) = (one for one in job["steps"] if one.get("id") == "diagnose")
    return dict(step)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean checkout: the files that git knows, or would take, and nothing that was built."""
    folder = tmp_path_factory.mktemp("action")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH that begins with a Python in which nothing is installed."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=True)
    return os.pathsep.join([str(folder / "bin"), "/usr/local/bin", "/usr/bin", "/bin"])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    return folder


def run(checkout: Path, workspace: Path, path: str, **inputs: str) -> Ran:
    given = {name.replace("_", "-"): value for name, value in inputs.items()}
    return actions.run(checkout, workspace, path, given, workspace.parent)


@pytest.mark.exhaustive
def test_a_recording_is_analyzed_and_over_the_limit_the_job_fails(checkout: Path, workspace: Path, path: str) -> None:
    """Without torch, which reading traces does not need."""
    shutil.copytree(SAMPLE, workspace / "runs" / "a")
    ran = run(checkout, workspace, path, run="runs/a", out="two words")
    assert ran.code == 0, ran.log
    forms = {"html": "report.html", "json": "diagnosis.json", "markdown": "report.md", "sarif": "diagnose.sarif"}
    assert {name: ran.outputs[name] for name in forms} == {name: f"two words/{file}" for name, file in forms.items()}
    assert (ran.outputs["recording"], ran.outputs["comparison"]) == ("", "")
    assert all((workspace / ran.outputs[name]).is_file() for name in forms)
    assert ran.summary.startswith("## 17.4 ms/step · ")
    assert json.loads((workspace / ran.outputs["json"]).read_text())["findings"]

    (workspace.parent / "summary.md").unlink()
    over = run(checkout, workspace, path, run="runs/a", fail_over="1%", analyze_options="--ignore 'DL04,SY'")
    assert over.code == 1
    assert "Failed --fail-over: " in over.log
    (said,) = json.loads((workspace / over.outputs["sarif"]).read_text())["runs"]
    assert "error" in [one["level"] for one in said["results"]]


@pytest.mark.exhaustive
def test_what_cannot_be_analyzed_fails_the_job(checkout: Path, workspace: Path, path: str) -> None:
    nothing = run(checkout, workspace, path)
    assert nothing.code == 2
    assert "There is nothing to analyze: set the input run or script." in nothing.log
    (workspace / "broken.json").write_text("hello")
    broken = run(checkout, workspace, path, run="broken.json; touch injected", python="python")
    assert broken.code == 2
    assert "does not exist" in broken.log
    assert not (workspace / "injected").exists()
    assert broken.outputs["sarif"] == ""


@pytest.mark.exhaustive
def test_a_script_is_recorded_and_analyzed_as_the_workflow_asks(checkout: Path, workspace: Path, path: str) -> None:
    """As often as asked, and all recordings are compared. The action installs torch. The script's words reach it whole,
    and nothing in them is run."""
    assert TORCH is not None
    asked = {name.replace("-", "_"): str(value) for name, value in _diagnose_step()["with"].items()}
    assert asked["script"] == "train.py"
    assert asked["torch"] == "torch"
    given = asked | {
        "script": SCRIPT,
        "torch": TORCH[0],
        "fail_over": "",
        "repeat": "2",
        "baseline": "before",
        "profile_options": "--warmup 5 --steps 3",
    }
    shutil.copytree(SAMPLE, workspace / "before")
    ran = run(checkout, workspace, path, **given)
    assert ran.code == 0, ran.log
    assert ran.outputs["recording"] == "diagnose-results/recording"
    for name in ("recording", "recording-2"):
        assert (workspace / "diagnose-results" / name / "rank0.trace.json.gz").is_file()
    assert (workspace / ran.outputs["comparison"]).is_file()
    found = json.loads((workspace / ran.outputs["json"]).read_text())
    assert found["provenance"]["manifest"]["complete"] is True
    assert not (workspace / "injected").exists()


@pytest.mark.exhaustive
def test_with_a_baseline_the_comparison_decides(checkout: Path, workspace: Path, path: str) -> None:
    """A single recording is not known to be slower than itself, whatever its findings are; barriers are slower."""
    for name in ("a", "b"):
        shutil.copytree(SAMPLE, workspace / name)
    same = run(checkout, workspace, path, run="b", baseline="a", fail_over="1%")
    assert same.code == 0, same.log
    assert "::warning title=diagnose::The comparison cannot tell noise from a difference." in same.log
    assert (workspace / same.outputs["comparison"]).is_file()
    case = ROOT / "sample_traces" / "planted" / "communication" / "ranks_meet_to_print"
    for name in ("strong", "strong_fixed"):
        shutil.copytree(case / name, workspace / name)
    slower = run(checkout, workspace, path, run="strong", baseline="strong_fixed", fail_over="1%")
    assert slower.code == 1, slower.log
    assert (workspace / slower.outputs["comparison"]).is_file()
    assert "\n## Slower by " in slower.summary


@pytest.mark.exhaustive
def test_the_job_of_gitlab(checkout: Path, workspace: Path, path: str) -> None:
    """Its lines, one bash for all, as GitLab's runner does; its variables, of which the project sets some."""
    assert TORCH is not None
    (job,) = yaml.safe_load((DOCS / "gitlab.yml").read_text(encoding="utf-8")).values()
    (workspace / "train.py").write_text(TRAINING.replace('["--name", "two words; touch injected"]', "[]"))
    known = {name: value for name, value in os.environ.items() if actions.HANDED_ON.fullmatch(name)}
    project = {"DIAGNOSE": str(checkout), "TORCH": TORCH[0], "FAIL_OVER": "0%"}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(job["script"])],
        cwd=workspace,
        env={**known, "PATH": path, **{name: str(value) for name, value in job["variables"].items()}, **project},
        capture_output=True,
        text=True,
        check=False,
    )
    results = workspace / job["artifacts"]["paths"][0]
    assert done.returncode in (0, 1), done.stderr
    found = Diagnosis.from_json((results / "diagnosis.json").read_bytes())
    assert (done.returncode == 1) == any(one.share_of_step > 0 for one in found.findings)
    assert (results / "report.html").is_file()
