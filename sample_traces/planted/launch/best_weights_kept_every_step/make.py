"""Every step copies all weights, as the loss has gone down."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

LAYERS = {"weak": 4, "medium": 12, "strong": 40}
WIDTH = 96


def main() -> None:
    """Train."""
    run = harness.start()
    layers = [
        layer for _ in range(LAYERS[run.level]) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH))
    ]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs = torch.rand(16, WIDTH)
    best: dict[str, torch.Tensor] = {}
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if number % (1000 if run.fixed else 1) == 0:
            best |= {name: weight.clone() for name, weight in model.state_dict().items()}
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step clones all weights."""
    cloned = [span for span in harness.spans(trace) if span["name"] == "aten::clone"]
    harness.expect(len(cloned) >= 4 * min(LAYERS.values()) * len(harness.steps(trace)), "weights are seldom copied")


if __name__ == "__main__":
    main()
