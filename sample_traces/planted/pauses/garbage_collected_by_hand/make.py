"""The program collects garbage itself, again and again."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from sample_traces import harness

EVERY, NEVER = {"weak": 16, "medium": 4, "strong": 1}, 1_000_000


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(784, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(32, 784)
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if number % (NEVER if run.fixed else EVERY[run.level]) == 0:
            gc.collect()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """The program has collected garbage."""
    harness.expect(bool(harness.named(trace, "<built-in function collect>")), "no garbage is collected by hand")


if __name__ == "__main__":
    main()
