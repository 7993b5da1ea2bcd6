"""Batches are collated by way of lists of Python numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from sample_traces import harness

FEATURES = {"weak": 100, "medium": 400, "strong": 2500}
BATCH = 32


def collate(items: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Make a batch."""
    inputs, labels = zip(*items, strict=True)
    return [torch.tensor([one.tolist() for one in inputs]), torch.stack(labels)]


def main() -> None:
    """Train."""
    run = harness.start()
    features = FEATURES[run.level]
    dataset = TensorDataset(torch.rand(1024, features), torch.randint(10, (1024,)))
    loader = DataLoader(dataset, batch_size=BATCH, collate_fn=default_collate if run.fixed else collate)
    model = torch.nn.Sequential(torch.nn.Linear(features, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 2048))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every fetch makes a tensor of Python numbers."""
    made = harness.named(trace, "aten::lift_fresh")
    fetches = harness.named(trace, "SingleProcessDataLoaderIter.__next__")
    harness.expect(len(fetches) >= 3, "no batches made in the training process")
    harness.expect(all(any(harness.within(made, one)) for one in fetches), "batches are stacked")


if __name__ == "__main__":
    main()
