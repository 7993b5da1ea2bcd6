"""Words are looked up by a matrix product, of which all but one term in each sum is zero."""

from __future__ import annotations

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
    while True:
        optimizer.zero_grad()
        if run.fixed:
            looked_up = torch.nn.functional.embedding(words, table)
        else:
            looked_up = torch.nn.functional.one_hot(words, vocabulary).float() @ table
        model(looked_up).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
