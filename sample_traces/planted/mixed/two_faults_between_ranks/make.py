"""The last rank computes more than the first, and every gradient is reduced on its own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness
from sample_traces.planted.communication.gradients_reduced_one_by_one import make as buckets
from sample_traces.planted.ranks.one_rank_computes_more import make as balance

SAMPLES = {"cpu": 2048, "cuda": 65536}
HEAVY = {"weak": 0.55, "medium": 0.67, "strong": 0.98}
LAYERS = {"weak": 4, "medium": 5, "strong": 6}
TINY_MB, DEFAULT_MB = 0.001, 25


def main() -> None:
    """Train on two ranks."""
    run = harness.start()
    layers = [layer for _ in range(LAYERS[run.level]) for layer in (torch.nn.Linear(32, 32), torch.nn.Tanh())]
    model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.Linear(256, 32), *layers)
    bucket_mb = DEFAULT_MB if run.fixes("buckets") else TINY_MB
    ddp = DistributedDataParallel(model.to(run.device), bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.device.type], 512)
    first = round(len(inputs) * (0.5 if run.fixes("balance") else 1 - HEAVY[run.level]))
    mine = inputs.split([first, len(inputs) - first])[run.rank].to(run.device)
    for _ in run:
        optimizer.zero_grad()
        (ddp(mine).square().sum() * run.ranks / len(inputs)).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Both faults show."""
    balance.verify(trace)
    buckets.verify(trace)


if __name__ == "__main__":
    main()
