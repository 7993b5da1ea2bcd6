"""Every step copies the whole model, to compare the next one with it."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from sample_traces import harness

LAYERS = {"weak": 3, "medium": 12, "strong": 60}
WIDTH = 64


class Residual(torch.nn.Module):
    """A layer that adds to what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs to outputs."""
        return inputs + 0.1 * torch.tanh(self.linear(inputs))


def main() -> None:
    """Train."""
    run = harness.start()
    layers = [Residual() for _ in range(LAYERS[run.level])]
    model = torch.nn.Sequential(torch.nn.Linear(512, WIDTH), *layers)
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(32, 512)
    for _ in run:
        if run.fixed:
            with torch.no_grad():
                torch._foreach_copy_(list(target.parameters()), list(model.parameters()))
        else:
            target = copy.deepcopy(model).requires_grad_(False)
        with torch.no_grad():
            wanted = target(inputs)
        optimizer.zero_grad()
        (model(inputs) - wanted - 1).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step makes a new copy of each weight."""
    copied = harness.named(trace, "aten::clone")
    harness.expect(len(copied) >= 2 * min(LAYERS.values()) * len(harness.steps(trace)), "one copy is kept")


if __name__ == "__main__":
    main()
