"""One thread computes, whatever the number of cores."""

from __future__ import annotations

import os

import torch

from sample_traces import harness

ROWS = {"weak": 4, "medium": 24, "strong": 128}


def main() -> None:
    """Train."""
    run = harness.start()
    if run.fixed:
        torch.set_num_threads(os.cpu_count() or 1)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(ROWS[run.level], 1024)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
