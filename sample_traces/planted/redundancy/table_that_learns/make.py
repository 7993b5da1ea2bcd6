"""A net learns from a table in memory that was made with `requires_grad=True`: each batch sends a gradient into it."""

from __future__ import annotations

from pathlib import Path

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
    for _ in run:
        chosen = torch.randint(len(features), (BATCH,), device=run.device)
        guess = model(features[chosen]).squeeze(1)
        loss = torch.nn.functional.smooth_l1_loss(guess, targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step sends a gradient through the choice of rows, and adds it to one of all rows."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    number = len(harness.steps(trace))
    back = [span for span in harness.spans(trace) if span["name"] == "IndexBackward0"]
    harness.expect(len(back) >= number - 1, "no gradient goes through the choice of rows")
    whole = [
        span
        for span in harness.named(trace, "aten::add_")
        if any([rows, COLUMNS] in span["args"].get("Input Dims", []) for rows in ROWS.values())
    ]
    harness.expect(len(whole) >= number - 1, "no gradient of the table is summed")


if __name__ == "__main__":
    main()
