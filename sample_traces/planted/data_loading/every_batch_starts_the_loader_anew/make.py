"""Every step asks a new iterator of the loader for its first batch, for which all windows of a series are shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from sample_traces import harness

WINDOWS = {"weak": 15_000, "medium": 45_000, "strong": 110_000}
LENGTH, BATCH, WIDTH = 64, 32, 32


class Windows(Dataset[torch.Tensor]):
    """All windows of a series, and the value after each."""

    def __init__(self, count: int) -> None:
        series = torch.arange(count + LENGTH) * 0.05
        series = series.sin() + 0.1 * torch.randn(len(series))
        self.windows = series.unfold(0, LENGTH + 1, 1)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return self.windows[indices]


def as_it_is(batch: torch.Tensor) -> torch.Tensor:
    """The windows are a batch already."""
    return batch


def epochs(loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Batches of one epoch after the other."""
    while True:
        yield from loader


def main() -> None:
    """Train."""
    run = harness.start()
    dataset = Windows(WINDOWS[run.level])
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=as_it_is)
    batches = epochs(loader)
    model = torch.nn.Sequential(
        torch.nn.Conv1d(1, WIDTH, 5), torch.nn.ReLU(), torch.nn.Conv1d(WIDTH, WIDTH, 5, dilation=2), torch.nn.ReLU(),
        torch.nn.Conv1d(WIDTH, WIDTH, 5, dilation=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool1d(4),
        torch.nn.Flatten(), torch.nn.Linear(4 * WIDTH, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    while True:
        batch = next(batches) if run.fixed else next(iter(loader))
        before, after = batch[:, None, :-1], batch[:, -1:]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(before), after).backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step shuffles."""
    shuffles = [span for span in harness.spans(trace) if span["name"] == "aten::randperm"]
    harness.expect(len(shuffles) >= max(3, len(harness.steps(trace)) - 1), "not every step shuffles")


if __name__ == "__main__":
    main()
