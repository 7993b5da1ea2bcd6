"""A small convolutional net on images in memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from sample_traces import harness

CHANNELS = {"weak": 16, "medium": 32, "strong": 64}


def main() -> None:
    """Train."""
    run = harness.start()
    channels = CHANNELS[run.level]
    dataset = TensorDataset(torch.rand(512, 3, 32, 32), torch.randint(10, (512,)))
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 3, padding=1),
        torch.nn.BatchNorm2d(channels),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(channels, 2 * channels, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(2 * channels, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.flip(-1)), labels)
            loss.backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Making batches takes less than a tenth of the step."""
    steps = sum(step["dur"] for step in harness.steps(trace))
    making = sum(span["dur"] for span in harness.named(trace, "SingleProcessDataLoaderIter.__next__"))
    harness.expect(0 < making < 0.1 * steps, "batches take a tenth of the step")


if __name__ == "__main__":
    main()
