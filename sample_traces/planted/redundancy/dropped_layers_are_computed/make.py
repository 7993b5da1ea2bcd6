"""Stochastic depth: layers that are dropped in a step are computed all the same, and multiplied by nought."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sample_traces import harness

DROPPED = {"weak": 2, "medium": 4, "strong": 7}
LAYERS, WIDTH, BATCH, ROWS = 12, 192, 96, 8192


class Layer(torch.nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What is added to the rows."""
        return self.narrow(torch.nn.functional.gelu(self.wide(self.norm(rows))))


def main() -> None:
    """Train."""
    run = harness.start()
    dropped = DROPPED[run.level]
    random.seed(harness.SEED)
    layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS)).to(run.device)
    head = torch.nn.Linear(WIDTH, 10).to(run.device)
    optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], lr=0.01, fused=True)
    inputs = torch.randn(ROWS, WIDTH, device=run.device)
    labels = torch.randint(10, (ROWS,), device=run.device)
    while True:
        chosen = torch.randint(ROWS, (BATCH,), device=run.device)
        hidden = inputs[chosen]
        out = set(random.sample(range(LAYERS), dropped))
        for number, layer in enumerate(layers):
            if run.fixed:
                hidden = hidden if number in out else hidden + layer(hidden)
            else:
                hidden = hidden + layer(hidden) * float(number not in out)
        loss = torch.nn.functional.cross_entropy(head(hidden), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step computes all layers."""
    number = len(harness.steps(trace))
    norms = [span for span in harness.spans(trace) if span["name"] == "aten::native_layer_norm"]
    harness.expect(len(norms) >= LAYERS * (number - 1), "layers are left out")


if __name__ == "__main__":
    main()
