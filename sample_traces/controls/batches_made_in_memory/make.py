"""DataLoader loads in the training process (num_workers=0), of samples in memory, which costs next to nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from sample_traces import harness

WIDTH = {"weak": 1536, "medium": 1792, "strong": 2048}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    dataset = TensorDataset(torch.rand(2048, 784), torch.randint(10, (2048,)))
    loader = DataLoader(dataset, batch_size=16, num_workers=0)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """The training process makes the batches, in hardly any of the steps' time."""
    made = sum(span["dur"] for span in harness.named(trace, "SingleProcessDataLoaderIter.__next__"))
    whole = sum(step["dur"] for step in harness.steps(trace))
    harness.expect(0 < made < 0.05 * whole, "making batches takes long, or is not recorded")


if __name__ == "__main__":
    main()
