"""Batches are too small to keep the GPU busy."""

from __future__ import annotations

import torch

from sample_traces import harness

SAMPLES = {"weak": 2048, "medium": 768, "strong": 32}
TIMES = 8
LAYERS = 4


def main() -> None:
    """Train. A step that is counted takes the same samples both ways."""
    run = harness.start()
    scale = 1 if run.device.type == "cuda" else 32
    samples, width = SAMPLES[run.level], 4096 // scale
    with run.device:
        inputs = torch.rand(TIMES * samples, width, dtype=torch.bfloat16)
        layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for batch in inputs.split(TIMES * samples if run.fixed else samples):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
