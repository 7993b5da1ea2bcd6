"""Batches of items of like lengths, for which a sampler sorts all of them every time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from sample_traces import harness

ITEMS = {"weak": 500, "medium": 4_000, "strong": 30_000}
BATCH, WIDTH = 16, 512


class AlikeInLength(Sampler[list[int]]):
    """Numbers of items for one batch after the other."""

    def __init__(self, lengths: list[int], once: bool) -> None:
        self.lengths, self.once = lengths, once

    def order(self) -> list[int]:
        """All items, the longest first."""
        return sorted(range(len(self.lengths)), key=lambda item: (-self.lengths[item], item))

    def __iter__(self) -> Iterator[list[int]]:
        order = self.order()
        for start in range(0, len(order) - BATCH, BATCH):
            yield (order if self.once else self.order())[start : start + BATCH]


def main() -> None:
    """Train."""
    run = harness.start()
    items = ITEMS[run.level]
    lengths = torch.randint(10, 500, (items,)).tolist()
    dataset = TensorDataset(torch.rand(items, 64), torch.randint(10, (items,)))
    loader = DataLoader(dataset, batch_sampler=AlikeInLength(lengths, once=run.fixed))
    model = torch.nn.Sequential(torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """The recorded stacks show more than one sort."""
    sorted_ = harness.named(trace.with_name("rank0.detail.json.gz"), ": order")
    harness.expect(len(sorted_) >= 2, "all is sorted once")


if __name__ == "__main__":
    main()
