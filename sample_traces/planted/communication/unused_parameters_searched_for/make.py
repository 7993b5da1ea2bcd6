"""DistributedDataParallel searches for unused parameters in every step, and there are none."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SAMPLES = {"weak": 768, "medium": 256, "strong": 32}
LAYERS = 5


def main() -> None:
    """Train."""
    run = harness.start()
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 32), *layers)
    ddp = DistributedDataParallel(model.to(run.device), find_unused_parameters=not run.fixed)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.level], 256, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step searches."""
    searches = harness.named(trace, "search_unused_parameters")
    harness.expect(len(searches) >= len(harness.steps(trace)), "nothing is searched for")


if __name__ == "__main__":
    main()
