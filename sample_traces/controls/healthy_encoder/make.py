"""An encoder of torch's own layers, as a tutorial would train it."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 64, "medium": 128, "strong": 256}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    table, encoder = torch.nn.Embedding(1000, width), torch.nn.TransformerEncoder(layer, 2)
    out = torch.nn.Linear(width, 1000)
    weights = [*table.parameters(), *encoder.parameters(), *out.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-4, fused=True)
    words = torch.randint(1000, (8, 48))
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        scores = out(encoder(table(words)))
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        if number % 50 == 0:
            print(f"step {number}: loss {loss.item():.4f}", flush=True)
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step goes through two layers of attention."""
    found = harness.named(trace, "aten::scaled_dot_product_attention")
    harness.expect(len(found) >= 2 * len(harness.steps(trace)), "there is no attention")


if __name__ == "__main__":
    main()
