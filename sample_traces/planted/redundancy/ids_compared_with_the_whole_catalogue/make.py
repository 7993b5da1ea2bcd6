"""A recommender finds the rows of the items of a batch by comparing their ids with all ids of a catalogue."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ITEMS = {"weak": 1000, "medium": 4000, "strong": 16_000}
BATCH, EVENTS, USER, CONTENT, WIDTH = 256, 20_000, 128, 64, 512


def tower(features: int) -> torch.nn.Module:
    """A net that makes vectors of 64 numbers."""
    return torch.nn.Sequential(torch.nn.Linear(features, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 64))


def main() -> None:
    """Train."""
    run = harness.start()
    items = ITEMS[run.level]
    catalogue = torch.randperm(1_000_000)[:items].sort().values.to(run.device)
    content = torch.randn(items, CONTENT, device=run.device)
    users = torch.randn(EVENTS, USER, device=run.device)
    bought = catalogue[torch.randint(items, (EVENTS,), device=run.device)]
    user_tower, item_tower = tower(USER).to(run.device), tower(CONTENT).to(run.device)
    weights = [*user_tower.parameters(), *item_tower.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=0.0005, fused=True)
    right = torch.arange(BATCH, device=run.device)
    while True:
        chosen = torch.randint(EVENTS, (BATCH,), device=run.device)
        ids = bought[chosen]
        if run.fixed:  # noqa: SIM108
            rows = torch.searchsorted(catalogue, ids)
        else:
            rows = (ids[:, None] == catalogue).nonzero()[:, 1]
        scores = user_tower(users[chosen]) @ item_tower(content[rows]).T / 8
        loss = torch.nn.functional.cross_entropy(scores, right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step looks for what is true in a table of the batch by all items."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    looked = [span["args"]["Input Dims"][0] for span in harness.spans(trace) if span["name"] == "aten::nonzero"]
    tables = [one for one in looked if one in [[BATCH, items] for items in ITEMS.values()]]
    harness.expect(len(tables) >= len(harness.steps(trace)) - 1, "ids are not compared with all")


if __name__ == "__main__":
    main()
