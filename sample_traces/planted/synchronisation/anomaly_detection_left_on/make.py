"""Anomaly detection, which checks every gradient for NaN, was left on."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 1024, "medium": 256, "strong": 32}
WIDTH = {"cpu": 1024, "cuda": 4096}


def main() -> None:
    """Train."""
    run = harness.start()
    torch.autograd.set_detect_anomaly(not run.fixed)
    width = WIDTH[run.device.type]
    model = torch.nn.Sequential(torch.nn.Linear(784, width), torch.nn.Linear(width, 64)).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(ROWS[run.level], 784, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Gradients are checked for NaN."""
    checks = sum(span["name"] in ("aten::isnan", "aten::any", "aten::ne") for span in harness.spans(trace))
    harness.expect(checks > 10, "no gradient is checked")


if __name__ == "__main__":
    main()
