"""A table is put together from its columns and turned, so that the numbers of a row lie far apart in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sample_traces import harness

COLUMNS = {"weak": 64, "medium": 160, "strong": 480}
ROWS = 100_000
BATCH = 1024


def read_table(columns: int, turned: bool) -> torch.Tensor:
    """All rows, as a file with one array per column has them."""
    draw = np.random.default_rng(harness.SEED)
    series = [draw.standard_normal(ROWS, dtype=np.float32) for _ in range(columns)]
    return torch.from_numpy(np.stack(series).T if turned else np.stack(series, axis=1))


def main() -> None:
    """Train."""
    run = harness.start()
    columns = COLUMNS[run.level]
    table = read_table(columns, turned=not run.fixed)
    prices = torch.rand(ROWS, 1)
    model = torch.nn.Sequential(
        torch.nn.Linear(columns, 128),
        torch.nn.SiLU(),
        torch.nn.Linear(128, 64),
        torch.nn.SiLU(),
        torch.nn.Linear(64, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    while True:
        for rows in torch.randperm(ROWS).split(BATCH)[:-1]:
            optimizer.zero_grad()
            loss = torch.nn.functional.huber_loss(model(table[rows]), prices[rows])
            loss.backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Rows are taken from a table whose rows are not of one piece."""
    detail = trace.with_name("rank0.detail.json.gz")
    taken = [span["args"] for span in harness.spans(detail) if span["name"] == "aten::index"]
    strides = [one["Input Strides"][0] for one in taken if one["Input Dims"][0][0] == ROWS]
    turned = [stride for stride in strides if stride[0] == 1 and stride[1] == ROWS]
    harness.expect(len(turned) >= len(harness.steps(detail)), "rows are of one piece")


if __name__ == "__main__":
    main()
