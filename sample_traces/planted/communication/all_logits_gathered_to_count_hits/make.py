"""Two ranks tell in every step how many of all guesses are right."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

WIDTH = {"weak": 768, "medium": 192, "strong": 16}
BATCH, CLASSES = 512, 1000


def gathered(own: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.cat(parts)


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, CLASSES))
    ddp = DistributedDataParallel(model.to(run.device), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, fused=True)
    inputs = torch.rand(BATCH, 64, device=run.device) + run.rank
    labels = torch.randint(CLASSES, (BATCH,), device=run.device)
    hits = torch.zeros((), dtype=torch.long, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        logits = ddp(inputs)
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
        if run.fixed:
            right = (logits.detach().argmax(dim=1) == labels).sum()
            dist.all_reduce(right)
        else:
            right = (gathered(logits.detach()).argmax(dim=1) == gathered(labels)).sum()
        hits += right


def verify(trace: Path) -> None:
    """Every step gathers tensors from all ranks."""
    met = harness.named(trace, "c10d::allgather_")
    harness.expect(len(met) >= 2 * (len(harness.steps(trace)) - 1), "little is gathered")


if __name__ == "__main__":
    main()
