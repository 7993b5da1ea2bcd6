"""What a rank writes, and how long a recording takes: `python -m benchmarks.ranks`.

A transformer of twelve layers is trained with DistributedDataParallel on two ranks, of which the first is recorded and
the second is only timed. Both say how long their steps took, so that what recording adds is known.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
MANY = 10_000
PROGRAM = """
import atexit, os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.TransformerEncoder(layer, 12), torch.nn.Linear(64, 64)]))
optimizer = torch.optim.AdamW(model.parameters())
began, steps, rank = time.perf_counter(), 0, dist.get_rank()


@atexit.register
def tell():
    with open(f"told{rank}", "w") as file:
        file.write(f"{time.perf_counter() - began} {steps}")


for _ in range(2_000):
    optimizer.zero_grad()
    model(torch.randn(4, 16, 64)).square().mean().backward()
    optimizer.step()
    steps += 1
"""


def main() -> None:
    """Print what each of the two ranks leaves, and what many would."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        ours = [sys.executable, "-m", "diagnose", "profile", "-q", "--no-analyze", "-o", "out", "--ranks", "0", "--"]
        subprocess.run([*ours, *launcher, "train.py"], cwd=folder, env=environment, check=True)
        parts = json.loads((folder / "out" / "manifest.json").read_text())["ranks"]
        seconds, steps = map(float, (folder / "told0").read_text().split())
        step_s = statistics.median(parts[0]["unprofiled"]["wall_ns"]) / 1e9
        files = {path.name.partition(".")[2]: path.stat().st_size for path in (folder / "out").glob("rank0.*")}
    for kind, size in sorted(files.items()):
        print(f"{kind:16} {size / 1e3:10,.1f} kB")
    recorded, timed = (len(json.dumps(part)) for part in parts)
    print(f"in the manifest  {recorded / 1e3:10,.1f} kB, of a rank that is only timed {timed / 1e3:.1f} kB")
    each = sum(files.values()) + recorded
    print(f"{MANY:,} ranks: {MANY * each / 1e9:,.1f} GB with all; {MANY * timed / 1e6:,.1f} MB and {each / 1e6:.2f} MB")
    print(f"for each rank that is recorded otherwise. A step takes {step_s * 1e3:.1f} ms; {steps:.0f} steps took")
    print(f"{seconds:.1f} s, of which recording took {seconds - steps * step_s:.1f} s.")


if __name__ == "__main__":
    main()
