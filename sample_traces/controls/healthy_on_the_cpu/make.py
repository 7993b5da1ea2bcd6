"""A training on the CPU, with data in memory, that computes all the time."""

from __future__ import annotations

from pathlib import Path

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
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Nearly all of the time is in ops."""
    spans = harness.spans(trace)
    products = sum(span["dur"] for span in spans if span["name"] in ("aten::addmm", "aten::mm"))
    steps = sum(span["dur"] for span in spans if span["name"].startswith("ProfilerStep#"))
    harness.expect(products > 0.5 * steps, "matrix products take less than half of the step")


if __name__ == "__main__":
    main()
