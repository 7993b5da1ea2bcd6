"""Words are looked up by a matrix product, of which all but one term in each sum is zero."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

VOCABULARY = {"weak": 600, "medium": 2_000, "strong": 8_000}
WORDS, WIDTH = 256, 128


def main() -> None:
    """Train."""
    run = harness.start()
    vocabulary = VOCABULARY[run.level]
    table = torch.nn.Parameter(torch.rand(vocabulary, WIDTH))
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
    optimizer = torch.optim.SGD([table, *model.parameters()], lr=0.01)
    words = torch.randint(vocabulary, (WORDS,))
    for _ in run:
        optimizer.zero_grad()
        if run.fixed:
            looked_up = torch.nn.functional.embedding(words, table)
        else:
            looked_up = torch.nn.functional.one_hot(words, vocabulary).float() @ table
        model(looked_up).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step makes rows of zeros and ones."""
    made = harness.named(trace, "aten::one_hot")
    harness.expect(len(made) >= len(harness.steps(trace)), "words are looked up by their numbers")


if __name__ == "__main__":
    main()
