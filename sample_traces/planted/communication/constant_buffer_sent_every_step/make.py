"""DistributedDataParallel sends a large constant buffer from rank 0 to all ranks before each forward pass."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

ROWS = {"weak": 1_000, "medium": 8_000, "strong": 64_000}
USED = 512


def main() -> None:
    """Train, against some of many reference vectors that the model keeps."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    model.register_buffer("references", torch.rand(ROWS[run.level], 64))
    ddp = DistributedDataParallel(model.to(run.device), broadcast_buffers=not run.fixed)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(256, 256, device=run.device)
    labels = torch.randint(USED, (256,), device=run.device)
    for _ in run:
        optimizer.zero_grad()
        alike = ddp(inputs) @ model.get_buffer("references")[:USED].T
        torch.nn.functional.cross_entropy(alike, labels).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step sends something from one rank to all."""
    sent = harness.named(trace, "c10d::broadcast_")
    harness.expect(len(sent) >= len(harness.steps(trace)), "no buffer is sent")


if __name__ == "__main__":
    main()
