"""Batches are copied to the GPU from memory that is not pinned, and the host waits for each."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

FEATURES = {"weak": 256, "medium": 1024, "strong": 8192}


def main() -> None:
    """Train."""
    run = harness.start()
    features, scale = FEATURES[run.level], 1 if run.device.type == "cuda" else 32
    rows, width = 4096 // scale, 8192 // scale
    inputs = torch.rand(2, rows, features)
    if run.fixed and run.device.type == "cuda":
        inputs = inputs.pin_memory()
    with run.device:
        model = torch.nn.Sequential(
            torch.nn.Linear(features, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
        ).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for batch in inputs:
            optimizer.zero_grad()
            on_device = batch.to(run.device, non_blocking=run.fixed)
            model(on_device.bfloat16()).square().mean().backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step copies a batch from pageable memory."""
    copies = harness.named(trace, "Memcpy HtoD (Pageable")
    large = sum(copy["args"]["bytes"] > 1_000_000 for copy in copies)
    harness.expect(large >= len(harness.steps(trace)) - 1 > 0, "no batches copied from pageable memory")


if __name__ == "__main__":
    main()
