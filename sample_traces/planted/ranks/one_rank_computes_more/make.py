"""The data is split unevenly: the last rank computes more than the first, which waits for it."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SAMPLES = {"cpu": 4096, "cuda": 65536}
HEAVY = {"weak": 0.55, "medium": 0.67, "strong": 0.98}


def main() -> None:
    """Train on two ranks."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.rand(SAMPLES[run.device.type], 512)
    first = round(len(inputs) * (0.5 if run.fixed else 1 - HEAVY[run.level]))
    mine = inputs.split([first, len(inputs) - first])[run.rank].to(run.device)
    while True:
        optimizer.zero_grad()
        (ddp(mine).square().sum() * run.ranks / len(inputs)).backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
