"""Adam updates one parameter after the other, of which there are two small ones."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

BATCH = {"weak": 8, "medium": 16, "strong": 24}


def main() -> None:
    """Train."""
    run = harness.start()
    layer = torch.nn.Conv2d(3, 32, 7, padding=3)
    optimizer = torch.optim.Adam(layer.parameters(), foreach=False, fused=run.fixed)
    images = torch.rand(BATCH[run.level], 3, 64, 64)
    for _ in run:
        optimizer.zero_grad()
        layer(images).mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """The optimizer updates without its fused form, in a small share of the step."""
    harness.expect(not harness.named(trace, "aten::_fused_adam_"), "the optimizer is fused")
    updates = sum(span["dur"] for span in harness.named(trace, "Optimizer.step"))
    whole = sum(step["dur"] for step in harness.steps(trace))
    harness.expect(0 < updates < 0.1 * whole, "the optimizer takes a large share")


if __name__ == "__main__":
    main()
