"""After every step a loop moves an average of the weights, tensor by tensor."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from sample_traces import harness

LAYERS = {"weak": 6, "medium": 20, "strong": 100}
WIDTH, DECAY = 24, 0.99


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
    model = torch.nn.Sequential(torch.nn.Linear(256, WIDTH), *layers)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    inputs = torch.rand(16, 256)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            if run.fixed:
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - DECAY)
            else:
                for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                    mean.mul_(DECAY).add_(weight, alpha=1 - DECAY)


def verify(trace: Path) -> None:
    """Every step multiplies each average by itself."""
    scaled = [span for span in harness.spans(trace) if span["name"] == "aten::mul_"]
    harness.expect(len(scaled) >= 2 * min(LAYERS.values()) * len(harness.steps(trace)), "averages move together")


if __name__ == "__main__":
    main()
