"""What does a fix of somebody's training gain? `python -m benchmarks.field BEFORE AFTER -- train.py --epochs 1`.

BEFORE and AFTER are two folders with the same training, one of them with the fix. The script runs in each by turns, in
fresh processes, and the mean step of each run is timed without any profiler (field_timer.py).
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from benchmarks.blocks import by_turns
from benchmarks.planted_cases import Truth

TIMER = Path(__file__).with_name("field_timer.py")
LIMIT_S = 600


@dataclass(frozen=True)
class Timing:
    """What is timed of each run."""

    skip: int = 20  # Steps before.
    count: int = 150
    seconds: float = 6.0


def measured(before: Path, after: Path, script: Sequence[str], timing: Timing, pairs: int = 5) -> Truth:
    """Both by turns."""
    return by_turns(partial(step_ns, before, script, timing), partial(step_ns, after, script, timing), pairs)


def step_ns(folder: Path, script: Sequence[str], timing: Timing) -> int:
    """The mean step of one run. Raises RuntimeError if it ends before it was timed."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "ns")
        what = [str(out), str(timing.skip), str(timing.count), str(timing.seconds), *script]
        ended = subprocess.run(
            [sys.executable, str(TIMER), *what],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (".", os.environ.get("PYTHONPATH"))))},
            check=False,
        )
        if not out.exists():
            raise RuntimeError(f"{folder}: no step was timed. {ended.stderr[-500:]}")
        return int(out.read_text())


@click.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("script", nargs=-1, required=True)
@click.option("--pairs", default=5, show_default=True)
@click.option("--skip", default=Timing.skip, show_default=True)
@click.option("--count", default=Timing.count, show_default=True)
@click.option("--seconds", default=Timing.seconds, show_default=True)
def main(before: Path, after: Path, script: tuple[str, ...], pairs: int, skip: int, count: int, seconds: float) -> None:
    """Print how many times as fast AFTER is, with its 95 % interval."""
    found = measured(before, after, script, Timing(skip, count, seconds), pairs)
    times = [f"{ns / 1e6:.3g}" for ns in (*found.bad_ns, *found.fixed_ns)]
    click.echo(f"x {found.speedup:.3f} ({found.low:.3f} to {found.high:.3f}); ms: {' '.join(times)}")


if __name__ == "__main__":
    main()
