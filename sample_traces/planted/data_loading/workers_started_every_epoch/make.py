"""Epochs are short, and each starts the loader's workers again."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from sample_traces import harness

WORKERS = {"weak": 1, "medium": 3, "strong": 10}
BATCH, BATCHES = 16, 5


def main() -> None:
    """Train."""
    run = harness.start()
    dataset = TensorDataset(torch.rand(BATCH * BATCHES, 784), torch.randint(10, (BATCH * BATCHES,)))
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS[run.level], persistent_workers=run.fixed)
    model = torch.nn.Sequential(torch.nn.Linear(784, 6000), torch.nn.ReLU(), torch.nn.Linear(6000, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """A stretch without an op is as long as starting processes takes."""
    harness.expect(max(harness.pauses_us(trace)) > 12_000, "no workers are started")


if __name__ == "__main__":
    main()
