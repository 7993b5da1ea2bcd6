"""Two ranks learn apart, and average their weights in every 16th step (local SGD)."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sample_traces import harness

WIDTH = {"weak": 512, "medium": 640, "strong": 768}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    model = torch.nn.Sequential(
        torch.nn.Linear(64, width),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(width, 16),
    ).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    inputs = torch.rand(256, 64, device=run.device) + run.rank
    labels = torch.randint(16, (256,), device=run.device)
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if number % 16 == 0:
            with torch.no_grad():
                weights = parameters_to_vector(model.parameters())
                dist.all_reduce(weights)
                vector_to_parameters(weights / run.ranks, model.parameters())
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Most steps send nothing."""
    sent = harness.named(trace, "c10d::allreduce_")
    harness.expect(len(sent) <= len(harness.steps(trace)) // 8 + 1, "most steps send something")


if __name__ == "__main__":
    main()
