"""Every metric is summed over the ranks in a collective of its own."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

METRICS = {"weak": 4, "medium": 8, "strong": 32}


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, METRICS[run.level]))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(256, 256, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        losses = ddp(inputs).square().mean(0)
        losses.mean().backward()
        optimizer.step()
        metrics = list(losses.detach())
        if run.fixed:
            together = torch.stack(metrics)
            dist.all_reduce(together)
            metrics = list(together)
        else:
            for metric in metrics:
                dist.all_reduce(metric)


def verify(trace: Path) -> None:
    """Every step has many more collectives than the one for gradients."""
    reduced = harness.named(trace, "c10d::allreduce_")
    harness.expect(len(reduced) > 3 * len(harness.steps(trace)), "metrics are reduced in few collectives")


if __name__ == "__main__":
    main()
