"""One worker waits for storage longer than a step takes."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

WAIT_S = {"weak": 0.00055, "medium": 0.0007, "strong": 0.0015}


class Stored(Dataset[tuple[torch.Tensor, int]]):
    """Images that come from slow storage."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.images = torch.rand(2048, 784)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.wait_s)
        return self.images[index], index % 10


def main() -> None:
    """Train."""
    run = harness.start()
    dataset = Stored(WAIT_S[run.level])
    loader = DataLoader(dataset, batch_size=16, num_workers=4 if run.fixed else 1, persistent_workers=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 10),
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
    """What was recorded with the trace says that mostly no batch was ready."""
    harness.expect(harness.loader(trace)["empty_share"] > 0.5, "batches are ready when they are asked for")


if __name__ == "__main__":
    main()
