"""The model is called for one sample after the other."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

LENGTH = {"weak": 320, "medium": 80, "strong": 1}
BATCH, WIDTH = 4, 1024


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10)).to(
        run.device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = torch.rand(BATCH, LENGTH[run.level], WIDTH, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        scores = model(samples) if run.fixed else torch.stack([model(sample) for sample in samples])
        scores.square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step runs the layers once for each sample."""
    layers = sum(span["name"] == "aten::linear" for span in harness.spans(trace))
    harness.expect(layers >= 2 * BATCH * len(harness.steps(trace)), "samples are computed together")


if __name__ == "__main__":
    main()
