"""A net uses the same two layers again and again, and their weights are kept orthogonal."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from torch.nn.utils import parametrizations, parametrize

from sample_traces import harness

BATCH = {"weak": 3072, "medium": 1024, "strong": 192}
ROUNDS, WIDTH = 4, 128


class Tied(torch.nn.Module):
    """A residual net all of whose blocks are one."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = parametrizations.orthogonal(torch.nn.Linear(WIDTH, WIDTH), orthogonal_map="cayley")
        self.back = parametrizations.orthogonal(torch.nn.Linear(WIDTH, WIDTH), orthogonal_map="cayley")
        self.out = torch.nn.Linear(WIDTH, 10)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits."""
        for _ in range(ROUNDS):
            states = states + self.back(torch.relu(self.wide(states)))
        return self.out(states)


def main() -> None:
    """Train."""
    run = harness.start()
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs, labels = torch.rand(BATCH[run.level], WIDTH), torch.randint(10, (BATCH[run.level],))
    while True:
        optimizer.zero_grad()
        with parametrize.cached() if run.fixed else contextlib.nullcontext():
            logits = model(inputs)
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Both weights are made orthogonal in every round."""
    made = [span for span in harness.spans(trace) if span["name"] == "aten::linalg_solve"]
    harness.expect(len(made) >= 2 * ROUNDS * len(harness.steps(trace)), "weights are seldom made")


if __name__ == "__main__":
    main()
