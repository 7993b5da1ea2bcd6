"""Two ranks have the same work, and communicate little for what they compute."""

from __future__ import annotations

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
    while True:
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
