"""Steps of a composite action, run as GitHub runs them: inputs as variables, outputs by files, one bash a step."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Names = Mapping[str, str]  # What expressions may name: inputs.run, steps.record.outputs.recording, ...

HANDED_ON = re.compile(r"PIP_.*|SSL_.*|HOME|LANG|LC_.*|TMPDIR|OMP_NUM_THREADS|OPENBLAS_.*|.*_proxy|.*_PROXY")
"""Variables of this machine that a container would have of its own."""


@dataclass(frozen=True)
class Ran:
    """What came of an action."""

    code: int
    outputs: dict[str, str]
    log: str
    summary: str


def evaluated(expression: str, names: Names) -> str:
    """An expression of GitHub, without `${{ }}`. Names that are not known are empty."""
    python = expression.replace("||", " or ").replace("&&", " and ")
    python = re.sub(r"\b(?:inputs|steps|github)(?:\.[\w-]+)+", lambda name: repr(names.get(name[0], "")), python)
    result = eval(python, {"__builtins__": {}, "always": lambda: True})
    return result if isinstance(result, str) else "true" if result else ""


def filled(text: str, names: Names) -> str:
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: evaluated(found[1].strip(), names), text)


def run(action: Path, workspace: Path, path: str, inputs: Names, scratch: Path) -> Ran:
    """The action in a folder, with the workspace as working folder. `path`: where programs are looked for.

    After a step that failed no other runs.
    """
    about = yaml.safe_load((action / "action.yml").read_text(encoding="utf-8"))
    assert about["runs"]["using"] == "composite"
    assert set(inputs) <= set(about["inputs"])
    names = {f"inputs.{name}": str(inputs.get(name, one.get("default", ""))) for name, one in about["inputs"].items()}
    summary, log, code = scratch / "summary.md", "", 0
    summary.touch()
    for number, step in enumerate(about["runs"]["steps"]):
        if code or ("if" in step and not evaluated(step["if"], names)):
            continue
        given = {
            **{name: value for name, value in os.environ.items() if HANDED_ON.fullmatch(name)},
            **{name: filled(str(value), names) for name, value in step.get("env", {}).items()},
            "PATH": path,
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(action),
            "GITHUB_WORKSPACE": str(workspace),
            "GITHUB_OUTPUT": str(scratch / f"{number}.output"),
            "GITHUB_STEP_SUMMARY": str(summary),
        }
        code, said = _bash(step, scratch / f"{number}.sh", workspace, given)
        log += said
        names |= _outputs(step, scratch / f"{number}.output")
    outputs = {name: filled(one["value"], names) for name, one in about["outputs"].items()}
    return Ran(code, outputs, log, summary.read_text(encoding="utf-8"))


def _bash(step: Mapping[str, Any], file: Path, workspace: Path, given: Names) -> tuple[int, str]:
    assert step["shell"] == "bash"
    file.write_text(step["run"], encoding="utf-8")
    words = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(file)]
    done = subprocess.run(
        words, cwd=workspace, env=dict(given), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def _outputs(step: Mapping[str, Any], file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    pairs = [line.partition("=") for line in lines]
    return {f"steps.{step.get('id')}.outputs.{name}": value for name, _, value in pairs}
