"""Every step writes all losses so far to a file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from sample_traces import harness

LOSSES = {"weak": 1_000, "medium": 5_000, "strong": 20_000}


def log(losses: list[float], path: Path) -> None:
    """Write them all."""
    path.write_text(json.dumps(dict(enumerate(losses))), encoding="utf-8")


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(784, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 784)
    losses = [0.5] * LOSSES[run.level]
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in run:
            number += 1
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            losses = [*losses[1:], loss.item()]
            if number % (1000 if run.fixed else 1) == 0:
                log(losses, Path(folder, "losses.json"))


def verify(trace: Path) -> None:
    """Steps hold a stretch of half a millisecond or more without an op."""
    harness.expect(sum(pause >= 500 for pause in harness.pauses_us(trace)) >= 3, "nothing is written")


if __name__ == "__main__":
    main()
