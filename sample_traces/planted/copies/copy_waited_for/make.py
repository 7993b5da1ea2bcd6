"""Batches are pinned, but the host waits for each copy, and has other work to do before it launches anything."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

FEATURES = {"weak": 192, "medium": 640, "strong": 1536}


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    features, scale = FEATURES[run.level], 1 if on_gpu else 32
    rows, width = 8192 // scale, 4096 // scale
    batches = torch.rand(2, rows, features, pin_memory=on_gpu)
    drift = torch.zeros(features)
    with run.device:
        hidden = [layer for _ in range(4) for layer in (torch.nn.GELU(), torch.nn.Linear(width, width))]
        model = torch.nn.Sequential(torch.nn.Linear(features, width), *hidden).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for batch in batches:
            optimizer.zero_grad()
            inputs = batch.to(run.device, non_blocking=run.fixed)
            drift.lerp_(batch.mean(0), 0.01)
            model(inputs.bfloat16()).square().mean().backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step copies from pinned memory, and waits for it."""
    steps = len(harness.steps(trace))
    copies = [copy for copy in harness.named(trace, "Memcpy HtoD (Pinned") if copy["args"]["bytes"] > 1_000_000]
    waits = [span for span in harness.named(trace, "cudaStreamSynchronize") if span["cat"] == "cuda_runtime"]
    harness.expect(len(copies) >= steps - 1 > 0, "no batches copied from pinned memory")
    harness.expect(len(waits) >= steps - 1, "the copies are not waited for")


if __name__ == "__main__":
    main()
