"""A recurrent net of torch's own, with its gradients clipped and its rate going down."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 64, "medium": 128, "strong": 256}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    lstm, out = torch.nn.LSTM(32, width, batch_first=True), torch.nn.Linear(width, 64)
    weights = [*lstm.parameters(), *out.parameters()]
    optimizer = torch.optim.AdamW(weights, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    inputs, labels = torch.rand(32, 24, 32), torch.randint(64, (32,))
    for _ in run:
        optimizer.zero_grad()
        states, _ = lstm(inputs)
        torch.nn.functional.cross_entropy(out(states[:, -1]), labels).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        scheduler.step()


def verify(trace: Path) -> None:
    """Every step calls torch's own."""
    harness.expect(len(harness.named(trace, "aten::lstm")) >= len(harness.steps(trace)), "there is no LSTM")


if __name__ == "__main__":
    main()
