"""DistributedDataParallel's buckets are so small that every gradient is reduced on its own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SAMPLES = {"weak": 768, "medium": 256, "strong": 32}
LAYERS = 6
TINY_MB, DEFAULT_MB = 0.001, 25


def main() -> None:
    """Train."""
    run = harness.start()
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 32), *layers)
    ddp = DistributedDataParallel(model.to(run.device), bucket_cap_mb=DEFAULT_MB if run.fixed else TINY_MB)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.level], 512, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step reduces many buckets."""
    steps, reduced = harness.steps(trace), harness.named(trace, "c10d::allreduce_")
    harness.expect(len(reduced) > 4 * len(steps), "few buckets are reduced")


if __name__ == "__main__":
    main()
