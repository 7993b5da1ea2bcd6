"""A training on the CPU, with data in memory, that computes all the time."""

from __future__ import annotations

import torch

from sample_traces import harness

WIDTH = {"weak": 512, "medium": 1024, "strong": 2048}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(784, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 784)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
