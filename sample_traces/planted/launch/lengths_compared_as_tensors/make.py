"""Every step sorts its rows by their lengths, each of which is read out of a tensor."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 300, "medium": 800, "strong": 3_000}
LENGTH, WIDTH = 4, 32


def main() -> None:
    """Train."""
    run = harness.start()
    rows = ROWS[run.level]
    table = torch.nn.EmbeddingBag(512, WIDTH)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD([*table.parameters(), *model.parameters()], lr=0.01)
    words, lengths = torch.randint(512, (rows, LENGTH)), torch.randint(1, LENGTH, (rows,))
    while True:
        optimizer.zero_grad()
        if run.fixed:
            order = torch.argsort(lengths, descending=True)
        else:
            order = torch.tensor(sorted(range(rows), key=lambda row: -lengths[row].item()))
        model(table(words[order])).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step reads a number of each row."""
    read = [span for span in harness.spans(trace) if span["name"] == "aten::item"]
    harness.expect(len(read) >= min(ROWS.values()) * len(harness.steps(trace)), "an op sorts")


if __name__ == "__main__":
    main()
