"""In every step one rank writes a long report, for which the others wait at the next reduction."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

NUMBERS = {"weak": 500, "medium": 4_000, "strong": 30_000}


def report(numbers: list[float], path: Path) -> None:
    """Write them, each in a line of its own."""
    path.write_text("\n".join(f"weight {k:>8d} is {number:+.6e}" for k, number in enumerate(numbers)), encoding="utf-8")


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(64, 512, device=run.device)
    weights = torch.rand(NUMBERS[run.level]).tolist()
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in run:
            number += 1
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            optimizer.step()
            if run.rank == 0 and number % (1000 if run.fixed else 1) == 0:
                report(weights, Path(folder, "report.txt"))


def verify(trace: Path) -> None:
    """The recorded stacks show the report of the first rank, in every step but the first."""
    written = harness.named(trace.with_name("rank0.detail.json.gz"), "make.py(16): report")
    harness.expect(len(written) >= 2, "nothing is written")


if __name__ == "__main__":
    main()
