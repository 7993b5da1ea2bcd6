"""Training scripts to record, and recording them as a user would."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from diagnose.trace.manifest import Manifest, RankManifest

ROOT = Path(__file__).parents[2]

RECORDED = [
    *("manifest.json", "rank0.detail.json.gz", "rank0.graph.json.gz", "rank0.trace.json.gz", "rank0.values.json.gz")
]
"""What a whole recording by torch.profiler leaves of one process."""

STEP = """
import os, sys, time
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(optimizer=optimizer):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 64)), torch.randint(0, 10, (64,)))
    loss.backward()
    optimizer.step()
    return loss.item()

"""
"""The beginning of a script: call `step()` in a loop."""


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def manifest(self) -> Manifest:
        return manifest_of(self.folder)

    @property
    def rank(self) -> RankManifest:
        (only,) = self.manifest.ranks
        return only

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


def manifest_of(folder: Path) -> Manifest:
    return msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)


def environment() -> dict[str, str]:
    """One thread, as a busy neighbour slows several down by far."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "diagnose", "profile", *map(str, words)]


def profile(folder: Path, *words: object, text: str = "", timeout: float = 600) -> Done:
    """`diagnose profile -o OUT --no-analyze WORDS`, run in the folder. Once more where Nsight Systems itself broke.

    TEXT is written to train.py before.
    """
    out = folder / "out"
    if text:
        script(folder, text)
    words = ("-o", out, "--no-analyze", *words)
    run = partial(subprocess.run, capture_output=True, text=True, cwd=folder, env=environment(), timeout=timeout)
    done = run(command(*words))
    if "Connection to Agent lost" in done.stderr:
        done = run(command(*words))
    return Done(done.returncode, done.stdout, done.stderr, out)


def plain(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, cwd=folder, env=environment(), timeout=600
    )


def started(folder: Path, *words: object, **variables: object) -> subprocess.Popen[str]:
    """A command that goes on in the folder, in a session of its own, with more variables in its environment."""
    given = {**environment(), **{name: str(value) for name, value in variables.items()}}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*map(str, words)], cwd=folder, env=given, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def wait_for(true: Callable[[], object], seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def steps_in(trace: Path) -> dict[int, list[str]]:
    """Names of the host's ops inside each marked step of a trace."""
    import gzip

    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    marks = [
        event for event in events if str(event.get("name", "")).startswith("ProfilerStep#") and event.get("ph") == "X"
    ]
    ops = [event for event in events if event.get("cat") in ("cpu_op", "user_annotation") and event not in marks]
    return {
        int(mark["name"].partition("#")[2]): [
            op["name"] for op in ops if mark["ts"] <= op["ts"] < mark["ts"] + mark["dur"]
        ]
        for mark in marks
    }
