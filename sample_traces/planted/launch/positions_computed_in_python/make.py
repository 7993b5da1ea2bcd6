"""Every step computes the same table of positions, number by number."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from sample_traces import harness

LENGTH = {"weak": 32, "medium": 96, "strong": 400}
BATCH, WIDTH, TABLE = 4, 256, 128


def positions(length: int) -> torch.Tensor:
    """Sines and cosines, one row a position."""
    rows = []
    for position in range(length):
        row = []
        for column in range(TABLE // 2):
            angle = position / 10_000 ** (2 * column / TABLE)
            row += [math.sin(angle), math.cos(angle)]
        rows.append(row)
    return torch.tensor(rows)


def main() -> None:
    """Train."""
    run = harness.start()
    length = LENGTH[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(TABLE, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words = torch.rand(BATCH, length, TABLE)
    once = positions(length)
    while True:
        optimizer.zero_grad()
        table = once if run.fixed else positions(length)
        model(words + table).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step makes a tensor of Python numbers."""
    made = harness.named(trace, "aten::lift_fresh")
    harness.expect(len(made) >= len(harness.steps(trace)), "the table is made once")


if __name__ == "__main__":
    main()
