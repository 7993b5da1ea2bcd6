"""Does recording survive scripts that use profilers themselves? `python -m benchmarks.profilers --runs 200`.

Each run is a small training with eight stretches drawn by a seed: plain steps, `torch.profiler` with and without a
schedule, started by hand, in another thread, torch.autograd's, and ranges of the script's own that are open for many
steps. It runs once by itself and once recorded. It must end as it does by itself, with the same sum of losses.

Names of events that are no text (UnicodeDecodeError) come from torch 2.13 itself where a profiler with stacks ran
before: one of the seeds fails so in 2 of 50 runs without us.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

TRAINING = Path(__file__).with_name("profilers_training.py")

MODES = {"ended": (), "kept running": ("--keep-running",)}
"""How the run goes on after the recording, and the options for it."""

TIMEOUT_S = 300


@dataclass(frozen=True)
class Ran:
    """How a training ended."""

    exit_code: int
    loss: str  # Its last line, empty if the run was ended before.
    last_error: str


def run(seed: int, command: list[str], folder: Path) -> Ran:
    """The training of that seed, by a command."""
    done = subprocess.run(
        [*command, str(TRAINING), str(seed)], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    losses = [line for line in done.stdout.splitlines() if line.startswith("loss ")]
    errors = done.stderr.strip().splitlines()
    return Ran(done.returncode, losses[-1] if losses else "", errors[-1] if errors else "")


def verdict(alone: Ran, recorded: Ran, *, ended: bool) -> str:
    """What recording did to a training."""
    if alone.exit_code:
        return "fails by itself"
    if recorded.exit_code == 2 and "recorded" in recorded.last_error:
        return "not recorded, and said so"
    if recorded.exit_code:
        return f"exit code {recorded.exit_code}: {recorded.last_error}"
    if recorded.loss != alone.loss and not (ended and not recorded.loss):
        return "other losses"
    return "fine"


def tried(seed: int, mode: str) -> str:
    """The verdict on one seed."""
    options = ("--no-analyze", "--warmup", "3", "--steps", "2", *MODES[mode])
    with tempfile.TemporaryDirectory() as folder:
        alone = run(seed, [sys.executable], Path(folder))
        command = [sys.executable, "-m", "diagnose", "profile", *options, "--out", "recording"]
        return verdict(alone, run(seed, command, Path(folder)), ended=mode == "ended")


@click.command()
@click.option("--runs", default=200, show_default=True, help="Recorded runs, half of them in each mode.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True)
def main(runs: int, first: int, jobs: int) -> None:
    """Count the verdicts. Exits with 1 if a run did not end as it does by itself."""
    cases = [(first + k // 2, list(MODES)[k % 2]) for k in range(runs)]
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = list(pool.map(lambda case: tried(*case), cases))
    for what, count in Counter(verdicts).most_common():
        examples = [f"{seed} {mode}" for (seed, mode), one in zip(cases, verdicts, strict=True) if one == what][:3]
        click.echo(f"{count:>5}  {what}  ({', '.join(examples)})")
    sys.exit(any(verdict not in ("fine", "not recorded, and said so", "fails by itself") for verdict in verdicts))


if __name__ == "__main__":
    main()
