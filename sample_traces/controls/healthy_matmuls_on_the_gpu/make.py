"""Large matrix multiplications in bf16 keep the GPU busy, and nothing is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 4096, "medium": 6144, "strong": 7168}
LAYERS = 3

MATMUL = re.compile(r"gemm|nvjet|cutlass")


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (64, 32) if run.device.type == "cpu" else (WIDTH[run.level], 16384)
    with run.device:
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers)
        inputs = torch.randn(tokens, width)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            outputs = model(inputs)
        outputs.float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """The GPU is busy nearly all the time, and multiplies matrices most of it."""
    kernels = [span for span in harness.spans(trace) if span.get("cat") == "kernel"]
    harness.expect(len(kernels) > 0, "nothing runs on a GPU")
    busy = sum(span["dur"] for span in kernels)
    whole = max(span["ts"] + span["dur"] for span in kernels) - min(span["ts"] for span in kernels)
    harness.expect(busy > 0.8 * whole, "the GPU is idle")
    multiplies = sum(span["dur"] for span in kernels if MATMUL.search(span["name"]))
    harness.expect(multiplies > 0.6 * busy, "the GPU does other work")


if __name__ == "__main__":
    main()
