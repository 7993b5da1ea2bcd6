"""Batches wait for storage, every step is logged, and Adam passes over its parameters many times."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

WAIT_S = {"weak": 0.00002, "medium": 0.0002, "strong": 0.0006}
NUMBERS = {"weak": 300, "medium": 2_000, "strong": 6_000}
ROWS = {"weak": 512, "medium": 128, "strong": 16}


class Stored(Dataset[torch.Tensor]):
    """Inputs that come from slow storage."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.inputs = torch.rand(2048, 784)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        return self.inputs[index]


def main() -> None:
    """Train."""
    run = harness.start()
    workers = 4 if run.fixes("loader") else 0
    dataset = Stored(WAIT_S[run.level])
    loader = DataLoader(dataset, batch_size=16, num_workers=workers, persistent_workers=workers > 0)
    model = torch.nn.Sequential(torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False, fused=run.fixes("optimizer"))
    settings = {f"setting {number}": number for number in range(NUMBERS[run.level])}
    number = 0
    with tempfile.TemporaryFile("w") as log:
        while True:
            for inputs in loader:
                number += 1
                optimizer.zero_grad()
                copies = inputs.repeat(ROWS[run.level] // 16, 1) + torch.rand(ROWS[run.level], 784)
                loss = model(copies).square().mean()
                loss.backward()
                optimizer.step()
                if not run.fixes("logs") or number % 100 == 0:
                    log.write(json.dumps({"step": number, "loss": loss.item(), "settings": settings}))
                if run.stepped():
                    return


def verify(trace: Path) -> None:
    """DataLoader loads in the training process (num_workers=0), and parameters are updated one after the other."""
    steps = len(harness.steps(trace))
    fetches = harness.named(trace, "SingleProcessDataLoaderIter.__next__")
    updates = harness.named(trace, "aten::addcdiv_")
    harness.expect(len(fetches) >= steps - 1, "no batches made in the training process")
    harness.expect(len(updates) >= 4 * (steps - 1), "parameters are updated together")


if __name__ == "__main__":
    main()
