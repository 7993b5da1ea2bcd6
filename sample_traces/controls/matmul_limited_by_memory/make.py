"""Small batches pass wide layers in fp32: what limits them is reading the weights, not multiplying."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"cpu": {"weak": 768, "medium": 1024, "strong": 1280}, "cuda": {"weak": 8192, "medium": 10240, "strong": 12288}}
BATCH, LAYERS = 4, 3


def main() -> None:
    """Train; the fixed variant multiplies in TF32 where the device can."""
    run = harness.start()
    torch.set_float32_matmul_precision("high" if run.fixed else "highest")
    width = WIDTH[run.device.type][run.level]
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    inputs = torch.rand(BATCH, width, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Matrices are multiplied, few a step, and the optimizer is fused."""
    products = len(harness.named(trace, "aten::addmm"))
    harness.expect(0 < products <= LAYERS * (len(harness.steps(trace)) + 1), "other matrices are multiplied")
    harness.expect(bool(harness.named(trace, "aten::_fused_adam_")), "the optimizer is not fused")


if __name__ == "__main__":
    main()
