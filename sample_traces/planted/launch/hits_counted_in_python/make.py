"""Every step counts in Python which class was taken for which."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 1_000, "medium": 4_000, "strong": 16_000}
CLASSES = 10


def main() -> None:
    """Train."""
    run = harness.start()
    rows = ROWS[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.rand(rows, 32), torch.randint(CLASSES, (rows,))
    table, counted = torch.zeros(CLASSES * CLASSES, dtype=torch.int64), Counter[tuple[int, int]]()
    for _ in run:
        optimizer.zero_grad()
        scores = model(inputs)
        torch.nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        answers = scores.argmax(dim=1)
        if run.fixed:
            table += torch.bincount(labels * CLASSES + answers, minlength=len(table))
        else:
            for label, answer in zip(labels.tolist(), answers.tolist(), strict=True):
                counted[label, answer] += 1


def verify(trace: Path) -> None:
    """Nothing is counted by an op."""
    harness.expect(not harness.named(trace, "aten::bincount"), "an op counts")


if __name__ == "__main__":
    main()
