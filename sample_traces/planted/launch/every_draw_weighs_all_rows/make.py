"""Rare cases are drawn more often than others, by weights of all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sample_traces import harness

ROWS = {"weak": 100_000, "medium": 230_000, "strong": 700_000}
BATCH = 256


class Rare:
    """Batches in which the rare label is about as frequent as the other."""

    def __init__(self, labels: torch.Tensor, ahead: int) -> None:
        rare = labels.numpy() > 0
        weights = np.where(rare, 1 / rare.sum(), 1 / (~rare).sum())
        self.weights = weights / weights.sum()
        self.random = np.random.default_rng(harness.SEED)
        self.ahead = ahead
        self.drawn: list[np.ndarray] = []

    def draw(self) -> list[np.ndarray]:
        """Rows of the next batches."""
        return list(self.random.choice(len(self.weights), size=(self.ahead, BATCH), p=self.weights))

    def rows(self) -> torch.Tensor:
        """Rows of the next batch."""
        if not self.drawn:
            self.drawn = self.draw()
        return torch.from_numpy(self.drawn.pop(0))


def main() -> None:
    """Train."""
    run = harness.start()
    count = ROWS[run.level]
    features, labels = torch.rand(count, 16), (torch.rand(count) < 0.01).float()
    rare = Rare(labels, ahead=100 if run.fixed else 1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    while True:
        rows = rare.rows()
        optimizer.zero_grad()
        guesses = model(features[rows]).squeeze(1)
        torch.nn.functional.binary_cross_entropy_with_logits(guesses, labels[rows]).backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """The recorded stacks show a draw in every step."""
    drawn = harness.named(trace.with_name("rank0.detail.json.gz"), ": draw")
    harness.expect(len(drawn) >= 2, "batches are seldom drawn")


if __name__ == "__main__":
    main()
