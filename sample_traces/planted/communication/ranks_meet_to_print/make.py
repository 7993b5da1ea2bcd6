"""In every step all ranks wait until the first has told how far they are."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

WIDTH = {"weak": 768, "medium": 512, "strong": 128}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 64))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(64, width, device=run.device)
    number = 0
    with Path(os.devnull).open("w", encoding="utf-8") as told:
        for _ in run:
            number += 1
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            optimizer.step()
            if number % (1000 if run.fixed else 1) == 0:
                dist.barrier()
                if run.rank == 0:
                    print(f"step {number} of {run.steps}", file=told, flush=True)
                dist.barrier()


def verify(trace: Path) -> None:
    """Every step has two barriers."""
    met = harness.named(trace, "c10d::barrier")
    harness.expect(len(met) >= 2 * (len(harness.steps(trace)) - 1), "there are few barriers")


if __name__ == "__main__":
    main()
