"""Every step looks for losses out of the ordinary, for which it sorts all of them."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sample_traces import harness

LOSSES = {"weak": 2_000, "medium": 8_000, "strong": 50_000}


def ordinary(losses: list[float]) -> tuple[float, float]:
    """Between which losses nine of ten lie."""
    order = sorted(losses)
    return order[len(order) // 20], order[-len(order) // 20]


def main() -> None:
    """Train."""
    run = harness.start()
    random.seed(harness.SEED)
    losses = [random.random() for _ in range(LOSSES[run.level])]
    model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 128)
    number, unusual = 0, 0
    low, high = ordinary(losses)
    while True:
        number += 1
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses[number % len(losses)] = loss.item()
        if number % (1000 if run.fixed else 1) == 0:
            low, high = ordinary(losses)
        unusual += not low < losses[-1] < high
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """The recorded stacks show the losses being sorted."""
    looked = harness.named(trace.with_name("rank0.detail.json.gz"), ": ordinary")
    harness.expect(len(looked) >= 2, "losses are seldom sorted")


if __name__ == "__main__":
    main()
