"""Batches are made in the training process, in hardly any time: the pattern is there, and costs nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from sample_traces import planted

WIDTH = {"weak": 2048, "medium": 3072, "strong": 4096}


def main() -> None:
    """Train."""
    run = planted.start()
    loader = DataLoader(TensorDataset(torch.rand(512, 784), torch.randint(10, (512,))), batch_size=8)
    width = WIDTH[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(784, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """There are fetches, and they are short."""
    spans = planted.spans(trace)
    fetches = [span["dur"] for span in spans if "SingleProcessDataLoaderIter.__next__" in span["name"]]
    steps = [span["dur"] for span in spans if span["name"].startswith("ProfilerStep#")]
    planted.expect(0 < sum(fetches) < 0.05 * sum(steps), "fetches are none, or not short")


if __name__ == "__main__":
    main()
