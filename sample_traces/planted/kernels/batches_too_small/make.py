"""Batches are too small to keep the GPU busy."""

from __future__ import annotations

from pathlib import Path

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
    for _ in run:
        for batch in inputs.split(TIMES * samples if run.fixed else samples):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


def verify(trace: Path) -> None:
    """Layers compute on small batches."""
    detail = trace.with_name(trace.name.replace(".trace.", ".detail."))
    rows = {layer["args"]["Input Dims"][1][0] for layer in harness.named(detail, "aten::addmm")}
    harness.expect(bool(rows) and rows <= set(SAMPLES.values()), "batches are not as small as planted")


if __name__ == "__main__":
    main()
