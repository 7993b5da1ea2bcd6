"""Adam updates one parameter after the other, of which there are two small ones."""

from __future__ import annotations

import torch

from sample_traces import harness

BATCH = {"weak": 8, "medium": 16, "strong": 24}


def main() -> None:
    """Train."""
    run = harness.start()
    layer = torch.nn.Conv2d(3, 32, 7, padding=3)
    optimizer = torch.optim.Adam(layer.parameters(), foreach=False, fused=run.fixed)
    images = torch.rand(BATCH[run.level], 3, 64, 64)
    while True:
        optimizer.zero_grad()
        layer(images).mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
