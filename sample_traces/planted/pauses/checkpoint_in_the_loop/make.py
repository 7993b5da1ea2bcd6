"""The training thread writes a checkpoint every fourth step."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 400, "medium": 800, "strong": 2000}
EVERY, SELDOM = 4, 1000


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 256)
    with tempfile.TemporaryDirectory() as folder:
        number = 0
        while True:
            number += 1
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if number % (SELDOM if run.fixed else EVERY) == 0:
                torch.save(model.state_dict(), Path(folder, "model.pt"))
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """A checkpoint was written between the recorded steps."""
    harness.expect(bool(harness.named(trace, "torch.save")), "no checkpoint is written")


if __name__ == "__main__":
    main()
