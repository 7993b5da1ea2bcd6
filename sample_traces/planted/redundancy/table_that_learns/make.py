"""A net learns from a table in memory that was made with `requires_grad=True`: each batch sends a gradient into it."""

from __future__ import annotations

import numpy as np
import torch

from sample_traces import harness

ROWS = {"weak": 12_000, "medium": 36_000, "strong": 108_000}
COLUMNS, BATCH, WIDTH = 64, 256, 448


def main() -> None:
    """Train."""
    run = harness.start()
    draws = np.random.default_rng(0)
    table = draws.standard_normal((ROWS[run.level], COLUMNS)).astype(np.float32)
    prices = (table[:, :8].sum(axis=1) + np.sin(3 * table[:, 8])).astype(np.float32)
    features = torch.tensor(table, device=run.device, requires_grad=not run.fixed)
    targets = torch.tensor(prices, device=run.device)
    model = torch.nn.Sequential(
        torch.nn.Linear(COLUMNS, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, 1),
    ).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    while True:
        chosen = torch.randint(len(features), (BATCH,), device=run.device)
        guess = model(features[chosen]).squeeze(1)
        loss = torch.nn.functional.smooth_l1_loss(guess, targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
