"""A gated recurrent net of torch's own, on batches made in memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from sample_traces import harness

WIDTH = {"weak": 96, "medium": 160, "strong": 256}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    dataset = TensorDataset(torch.randint(2000, (1024, 32)), torch.randint(5, (1024,)))
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    table, gru, out = torch.nn.Embedding(2000, 64), torch.nn.GRU(64, width, batch_first=True), torch.nn.Linear(width, 5)
    weights = [*table.parameters(), *gru.parameters(), *out.parameters()]
    optimizer = torch.optim.Adam(weights, fused=True)
    number, total = 0, 0.0
    while True:
        for words, labels in loader:
            number += 1
            optimizer.zero_grad()
            states, _ = gru(table(words))
            loss = torch.nn.functional.cross_entropy(out(states.mean(dim=1)), labels)
            loss.backward()
            optimizer.step()
            if number % 10 == 0:
                total += loss.item()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step calls torch's own."""
    harness.expect(len(harness.named(trace, "aten::gru")) >= len(harness.steps(trace)), "there is no GRU")


if __name__ == "__main__":
    main()
