"""What the agent costs a step that it does not record: `python -m benchmarks.recording [cpu|cuda]`.

The same script runs alone and under `diagnose profile`, in turn, with a warm-up that outlasts it. Its steps do next to
nothing, so that what is added stands out; of several runs the fastest counts.
"""

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
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True, device=sys.argv[2])], lr=0.1)
loader = torch.utils.data.DataLoader(range(int(sys.argv[1])), batch_size=None)
began = time.perf_counter()
for item in loader:
    optimizer.step()
print((time.perf_counter() - began) / int(sys.argv[1]) * 1e6)
"""


def step_us(folder: Path, device: str, *before: str) -> float:
    """Time of a step, in microseconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *before, str(folder / "train.py"), str(STEPS), device]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    return float(done.stdout)


def both_us(device: str, runs: int = RUNS) -> tuple[float, float]:
    """Times of a step alone and watched, in microseconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        alone, watched = [], []
        for run in range(runs):
            out = str(folder / f"out{run}")
            alone.append(step_us(folder, device))
            by = ["-m", "diagnose", "profile", "-q", "--no-analyze", "--warmup", "1000000", "-o", out]
            watched.append(step_us(folder, device, *by))
    return min(alone), min(watched)


if __name__ == "__main__":
    alone_us, watched_us = both_us((*sys.argv, "cpu")[1])
    print(f"alone {alone_us:.2f} us a step, watched {watched_us:.2f} us: {watched_us - alone_us:.2f} us more")
