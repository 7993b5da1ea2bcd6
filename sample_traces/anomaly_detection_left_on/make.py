"""Anomaly detection, which checks every gradient for NaN, was left on."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import planted

LAYERS = {"weak": 2, "medium": 6, "strong": 20}


def main() -> None:
    """Train."""
    run = planted.start()
    torch.autograd.set_detect_anomaly(not run.fixed)
    layers = [layer for _ in range(LAYERS[run.level]) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    model = torch.nn.Sequential(torch.nn.Linear(784, 1024), torch.nn.Linear(1024, 64), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 784)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Gradients are checked for NaN."""
    checks = sum(span["name"] in ("aten::isnan", "aten::any", "aten::ne") for span in planted.spans(trace))
    planted.expect(checks > 10, "no gradient is checked")


if __name__ == "__main__":
    main()
