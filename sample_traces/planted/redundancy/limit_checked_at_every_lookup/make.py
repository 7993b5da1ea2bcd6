"""A recommender whose table of items limits the norms of its rows, which are far from the limit."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import logsigmoid

from sample_traces import harness

WIDTH = {"weak": 1280, "medium": 544, "strong": 208}
"""Of the hidden layer."""
ITEMS, USERS, NUMBERS, BATCH, PAST = 20_000, 5_000, 32, 192, 8


class Recommender(torch.nn.Module):
    """Scores items for users, of whom it knows what they chose before."""

    def __init__(self, width: int, most: float | None) -> None:
        super().__init__()
        self.items = torch.nn.Embedding(ITEMS, NUMBERS, max_norm=most, sparse=True)
        self.users = torch.nn.Embedding(USERS, NUMBERS, sparse=True)
        for table in (self.items, self.users):
            torch.nn.init.normal_(table.weight, std=0.05)
        self.taste = torch.nn.Sequential(
            torch.nn.Linear(2 * NUMBERS, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, NUMBERS),
        )

    def forward(self, users: torch.Tensor, past: torch.Tensor, offered: torch.Tensor) -> torch.Tensor:
        """The score of each item that is offered."""
        known = torch.cat((self.users(users), self.items(past).mean(dim=1)), dim=1)
        return torch.einsum("bn,bon->bo", self.taste(known), self.items(offered))


def main() -> None:
    """Train."""
    run = harness.start()
    model = Recommender(WIDTH[run.level], None if run.fixed else 5.0).to(run.device)
    dense = torch.optim.SGD(model.taste.parameters(), lr=0.05, fused=True)
    sparse = torch.optim.SGD([model.items.weight, model.users.weight], lr=0.05)
    seen = torch.randint(ITEMS, (USERS, PAST + 1), device=run.device)
    while True:
        users = torch.randint(USERS, (BATCH,), device=run.device)
        past, chosen = seen[users].split((PAST, 1), dim=1)
        others = torch.randint(ITEMS, (BATCH, 1), device=run.device)
        scores = model(users, past, torch.cat((chosen, others), dim=1))
        loss = -logsigmoid(scores[:, 0] - scores[:, 1]).mean()
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step limits the norms of what it looks up, twice."""
    limited = [span for span in harness.spans(trace) if span["name"] == "aten::embedding_renorm_"]
    harness.expect(len(limited) >= 2 * len(harness.steps(trace)), "no norms are limited")


if __name__ == "__main__":
    main()
