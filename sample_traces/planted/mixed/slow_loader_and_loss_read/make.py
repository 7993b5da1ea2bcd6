"""Batches are read in the training process from slow storage, and the loss is read in every step."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

WAIT_S = {"weak": 0.00001, "medium": 0.00025, "strong": 0.0012}
FEATURES = 16


class Stored(Dataset[torch.Tensor]):
    """Sequences that come from slow storage."""

    def __init__(self, length: int, wait_s: float) -> None:
        self.wait_s = wait_s
        self.sequences = torch.rand(512, length, FEATURES)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        return self.sequences[index]


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    scale = 1 if on_gpu else 16
    dataset, width = Stored(1024 // scale, WAIT_S[run.level]), 4096 // scale
    workers = 4 if run.fixes("loader") else 0
    loader = DataLoader(dataset, 8, num_workers=workers, persistent_workers=workers > 0, pin_memory=on_gpu)
    with run.device:
        hidden = [layer for _ in range(6) for layer in (torch.nn.GELU(), torch.nn.Linear(width, width))]
        model = torch.nn.Sequential(torch.nn.Linear(FEATURES, width), *hidden).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total: torch.Tensor | float = 0.0
    while True:
        for batch in loader:
            inputs = batch.to(run.device, non_blocking=True).bfloat16()
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.detach() if run.fixes("read") else loss.item()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """The training process makes the batches, and reads a number in every step."""
    steps = len(harness.steps(trace))
    fetches = harness.named(trace, "SingleProcessDataLoaderIter.__next__")
    reads = [span for span in harness.named(trace, "aten::item") if span["cat"] == "cpu_op"]
    harness.expect(len(fetches) >= steps - 1 > 0, "no batches made in the training process")
    harness.expect(len(reads) >= steps - 1, "numbers are not read in every step")


if __name__ == "__main__":
    main()
