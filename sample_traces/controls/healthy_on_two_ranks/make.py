"""Two ranks have the same work, and communicate little for what they compute."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SAMPLES = {"weak": 1024, "medium": 1536, "strong": 2048}


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    ddp = DistributedDataParallel(model.to(run.device), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.level], 256, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Gradients are reduced, once a step, and nothing else is done for the ranks."""
    steps = harness.steps(trace)
    harness.expect(len(harness.named(trace, "c10d::allreduce_")) == len(steps), "gradients are reduced otherwise")
    for name in ("c10d::broadcast_", "c10d::barrier", "search_unused_parameters"):
        harness.expect(not harness.named(trace, name), f"there is {name}")


if __name__ == "__main__":
    main()
