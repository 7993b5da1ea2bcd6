"""Barriers stand in the training loop, where nothing needs them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SAMPLES = {"weak": 384, "medium": 64, "strong": 16}


def main() -> None:
    """Train, with a barrier after each phase of a step."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.level], 256, device=run.device)

    def phase_ends() -> None:
        if not run.fixed:
            dist.barrier()

    for _ in run:
        optimizer.zero_grad()
        loss = ddp(inputs).square().mean()
        phase_ends()
        loss.backward()
        phase_ends()
        optimizer.step()
        phase_ends()


def verify(trace: Path) -> None:
    """Every step has barriers."""
    barriers = harness.named(trace, "c10d::barrier")
    harness.expect(len(barriers) >= 2 * len(harness.steps(trace)), "there are no barriers")


if __name__ == "__main__":
    main()
