"""Every step gathers what each rank has found, as Python objects."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

NUMBERS = {"weak": 10, "medium": 1_000, "strong": 20_000}


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(128, 256, device=run.device)
    found = {"rank": run.rank, "scores": [one / 7 for one in range(NUMBERS[run.level])]}
    gathered: list[object] = [None] * run.ranks
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()
        if number % (1000 if run.fixed else 1) == 0:
            dist.all_gather_object(gathered, found)
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step gathers."""
    gathered = harness.named(trace, "c10d::allgather_")
    harness.expect(len(gathered) >= len(harness.steps(trace)), "nothing is gathered")


if __name__ == "__main__":
    main()
