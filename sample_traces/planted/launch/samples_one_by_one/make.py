"""The model is called for one sample after the other."""

from __future__ import annotations

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
    while True:
        optimizer.zero_grad()
        scores = model(samples) if run.fixed else torch.stack([model(sample) for sample in samples])
        scores.square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
