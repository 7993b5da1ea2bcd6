"""Gradients are clipped by hand, and the host reads the norm of each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 49152, "medium": 10240, "strong": 2048}
BLOCKS = 3
LARGEST = 0.1


def clip_by_hand(parameters: Iterable[torch.Tensor]) -> None:
    """Scale all gradients so that their norm is LARGEST at most."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    total = 0.0
    for gradient in gradients:
        total += gradient.norm().item() ** 2
    scale = min(1.0, LARGEST / (total**0.5 + 1e-6))
    for gradient in gradients:
        gradient.mul_(scale)


def main() -> None:
    """Train."""
    run = harness.start()
    scale = 1 if run.device.type == "cuda" else 32
    rows, width = ROWS[run.level] // scale, 2048 // scale
    with run.device:
        inputs = torch.rand(rows, width, dtype=torch.bfloat16)
        blocks = [(torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(BLOCKS)]
        model = torch.nn.Sequential(*(layer for block in blocks for layer in block)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        if run.fixed:
            torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST, foreach=True)
        else:
            clip_by_hand(model.parameters())
        optimizer.step()


def verify(trace: Path) -> None:
    """As many numbers are read in every step as there are parameters."""
    reads = [span for span in harness.named(trace, "aten::item") if span["cat"] == "cpu_op"]
    parameters = 4 * BLOCKS
    harness.expect(len(reads) >= parameters * (len(harness.steps(trace)) - 1) > 0, "hardly any numbers are read")


if __name__ == "__main__":
    main()
