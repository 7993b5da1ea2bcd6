"""What the agent costs a step that it does not record: `python -m benchmarks.recording`.

The same script runs alone and under `diagnose profile`, in turn, with a warm-up that outlasts it. Its steps do next to
nothing, so that what is added stands out; of several runs the fastest counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
STEPS = 20_000
RUNS = 5
PROGRAM = """
import sys, time, torch
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
loader = torch.utils.data.DataLoader(range(int(sys.argv[1])), batch_size=None)
began = time.perf_counter()
for item in loader:
    optimizer.step()
print((time.perf_counter() - began) / int(sys.argv[1]) * 1e6)
"""


def step_us(folder: Path, *before: str) -> float:
    """Time of a step, in microseconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *before, str(folder / "train.py"), str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    return float(done.stdout)


def main() -> None:
    """Print both times and their difference."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        alone, watched = [], []
        for run in range(RUNS):
            out = str(folder / f"out{run}")
            alone.append(step_us(folder))
            watched.append(
                step_us(folder, "-m", "diagnose", "profile", "-q", "--no-analyze", "--warmup", "1000000", "-o", out)
            )
    added = min(watched) - min(alone)
    print(f"alone {min(alone):.2f} us a step, watched {min(watched):.2f} us: {added:.2f} us more")


if __name__ == "__main__":
    main()
