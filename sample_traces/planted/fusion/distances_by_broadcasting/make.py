"""Metric learning by neighbourhood components: near are rows of the same class."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 80, "medium": 128, "strong": 256}


def distances(points: torch.Tensor, fixed: bool) -> torch.Tensor:
    """Squared, of all pairs."""
    if fixed:
        norms = points.square().sum(dim=1)
        return (norms[:, None] + norms[None, :] - 2 * points @ points.T).clamp(min=0)
    return (points[:, None, :] - points[None, :, :]).square().sum(dim=-1)


def neighbour_loss(points: torch.Tensor, labels: torch.Tensor, fixed: bool) -> torch.Tensor:
    """How unlikely a neighbour drawn by distance is of the same class."""
    itself = torch.eye(len(points), dtype=torch.bool)
    likely = torch.log_softmax((-distances(points, fixed)).masked_fill(itself, -1e9), dim=1)
    other = (labels[:, None] != labels[None, :]) | itself
    return -torch.logsumexp(likely.masked_fill(other, -1e9), dim=1).mean()


def main() -> None:
    """Train."""
    run = harness.start()
    rows = ROWS[run.level]
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 64),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    table = torch.randn(4096, 512)
    labels = torch.arange(rows) // 4
    first = 0
    for _ in run:
        inputs = table[first : first + rows]
        first = (first + rows) % (len(table) - rows)
        optimizer.zero_grad()
        neighbour_loss(model(inputs), labels, run.fixed).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Differences have three dimensions."""
    found = harness.named(trace.with_name("rank0.detail.json.gz"), "aten::sub")
    wide = [span for span in found if [len(dims) for dims in span["args"].get("Input Dims", [])[:2]] == [3, 3]]
    harness.expect(len(wide) >= 1, "no differences of all pairs")


if __name__ == "__main__":
    main()
