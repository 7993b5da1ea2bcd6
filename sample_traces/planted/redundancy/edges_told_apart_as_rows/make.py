"""A graph net on neighbourhoods that are drawn for every step; edges drawn twice are dropped."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 288, "medium": 176, "strong": 48}
"""Of a node's state."""
NODES, FRIENDS, SEEDS, DRAWN = 2_000, 20, 80, 6


def sampled(friends: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Edges to the seeds from some friends, and to those from some of theirs: E x 2."""
    found = []
    for _ in range(2):
        draws = torch.randint(FRIENDS, (len(seeds), DRAWN), device=seeds.device)
        near = friends[seeds].gather(1, draws)
        found.append(torch.stack((seeds[:, None].expand_as(near), near), dim=2).flatten(0, 1))
        seeds = near.flatten()
    return torch.cat(found)


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    friends = torch.randint(NODES, (NODES, FRIENDS), device=run.device)
    features = torch.rand(NODES, width, device=run.device)
    labels = torch.randint(8, (NODES,), device=run.device)
    first, second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
    model = torch.nn.ModuleList((first, second, torch.nn.Linear(width, 8))).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    while True:
        seeds = torch.randint(NODES, (SEEDS,), device=run.device)
        edges = sampled(friends, seeds)
        if run.fixed:
            keys = torch.unique(edges[:, 0] * NODES + edges[:, 1])
            to, source = keys // NODES, keys % NODES
        else:
            to, source = torch.unique(edges, dim=0).unbind(dim=1)
        states = features
        for layer in (first, second):
            gathered = torch.zeros_like(states).index_add(0, to, layer(states).index_select(0, source))
            states = (states + gathered).relu()
        loss = torch.nn.functional.cross_entropy(model[2](states[seeds]), labels[seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step sorts its edges as rows."""
    sorts = [span for span in harness.spans(trace) if span["name"] == "aten::unique_dim"]
    harness.expect(len(sorts) >= len(harness.steps(trace)), "no rows are sorted")


if __name__ == "__main__":
    main()
