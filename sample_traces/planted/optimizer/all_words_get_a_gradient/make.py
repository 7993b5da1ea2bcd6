"""A table of many words, all of which get a gradient though few were looked up."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

VOCABULARY = {"weak": 4_000, "medium": 20_000, "strong": 200_000}
WORDS, WIDTH = 256, 32


def main() -> None:
    """Train."""
    run = harness.start()
    vocabulary = VOCABULARY[run.level]
    table = torch.nn.Embedding(vocabulary, WIDTH, sparse=run.fixed)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.SGD([*table.parameters(), *model.parameters()], lr=0.01)
    words = torch.randint(vocabulary, (WORDS,))
    for _ in run:
        optimizer.zero_grad()
        model(table(words)).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step makes a dense gradient of the table."""
    made = harness.named(trace, "aten::embedding_dense_backward")
    harness.expect(len(made) >= len(harness.steps(trace)), "gradients are sparse")


if __name__ == "__main__":
    main()
