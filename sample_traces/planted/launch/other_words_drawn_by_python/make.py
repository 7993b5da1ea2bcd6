"""Every step draws words for comparison, row by row, with Python's random numbers."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 40, "medium": 120, "strong": 800}
VOCABULARY, DRAWN, WIDTH = 50_000, 20, 64


def main() -> None:
    """Train."""
    run = harness.start()
    rows = ROWS[run.level]
    random.seed(harness.SEED)
    table = torch.nn.Embedding(VOCABULARY, WIDTH, sparse=True)
    mix = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, WIDTH))
    optimizer = torch.optim.SGD([*table.parameters(), *mix.parameters()], lr=0.01)
    words = torch.randint(VOCABULARY, (rows,))
    everything = range(VOCABULARY)
    while True:
        optimizer.zero_grad()
        if run.fixed:
            others = torch.randint(VOCABULARY, (rows, DRAWN))
        else:
            others = torch.tensor([random.sample(everything, DRAWN) for _ in range(rows)])
        scores = table(others) @ mix(table(words)).unsqueeze(-1)
        scores.square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step makes a tensor of Python numbers."""
    made = harness.named(trace, "aten::lift_fresh")
    harness.expect(len(made) >= len(harness.steps(trace)), "words are drawn by an op")


if __name__ == "__main__":
    main()
