"""Now and then an item takes long, and the workers may not be far enough ahead to hide it."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

WAIT_S = {"weak": 0.022, "medium": 0.03, "strong": 0.07}
BATCH, EVERY = 16, 5


class Stored(Dataset[tuple[torch.Tensor, int]]):
    """Images of which few lie in slow storage: one in every fifth batch."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.images = torch.rand(BATCH * EVERY * 200, 128)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % (BATCH * EVERY) == 0:
            time.sleep(self.wait_s)
        return self.images[index], index % 10


def main() -> None:
    """Train."""
    run = harness.start()
    ahead = 8 if run.fixed else 1
    loader = DataLoader(Stored(WAIT_S[run.level]), batch_size=BATCH, num_workers=2, prefetch_factor=ahead)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 2048),
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
    """What was recorded with the trace says that the queue holds one batch of each worker."""
    harness.expect(harness.loader(trace)["prefetch_factor"] == 1, "the queue is longer")


if __name__ == "__main__":
    main()
