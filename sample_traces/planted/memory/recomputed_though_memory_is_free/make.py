"""Layers are computed again in the backward pass, to save memory of which plenty is free."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

from sample_traces import harness

LAYERS = 4
RECOMPUTED = {"weak": 1, "medium": 3, "strong": LAYERS}


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (64, 32) if run.device.type == "cpu" else (4096, 16384)
    recomputed = 0 if run.fixed else RECOMPUTED[run.level]
    with run.device:
        layers = [
            torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.GELU()) for _ in range(LAYERS)
        ]
        inputs = torch.randn(tokens, width)
    optimizer = torch.optim.SGD([weight for layer in layers for weight in layer.parameters()], lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            x = inputs
            for number, layer in enumerate(layers):
                if number < recomputed:
                    x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)
                else:
                    x = layer(x)
        x.float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """There are more calls of layers than layers; autocast records each twice, with and within its casts."""
    calls = sum(span["name"] == "aten::linear" for span in harness.spans(trace))
    harness.expect(calls > 2 * LAYERS * len(harness.steps(trace)), "no layer is computed again")


if __name__ == "__main__":
    main()
