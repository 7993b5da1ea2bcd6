"""Every step makes histograms of all gradients, to be looked at some day."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

LAYERS = {"weak": 4, "medium": 12, "strong": 60}
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
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    inputs = torch.rand(32, 512)
    seen: dict[str, list[float]] = {}
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        if number % (1000 if run.fixed else 1) == 0:
            for name, weight in model.named_parameters():
                if weight.grad is not None:
                    seen[name] = torch.histc(weight.grad, bins=64).tolist()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step makes histograms."""
    made = harness.named(trace, "aten::histc")
    harness.expect(len(made) >= 2 * min(LAYERS.values()) * len(harness.steps(trace)), "few histograms are made")


if __name__ == "__main__":
    main()
