"""A kilobyte that is not pinned is copied to the GPU in every step, which costs nothing."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 8192, "medium": 16384, "strong": 32768}


def main() -> None:
    """Train."""
    run = harness.start()
    scale = 1 if run.device.type == "cuda" else 32
    rows, width = ROWS[run.level] // scale, 4096 // scale
    weights = torch.rand(256)
    with run.device:
        inputs = torch.rand(rows, width, dtype=torch.bfloat16)
        hidden = [layer for _ in range(5) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        model = torch.nn.Sequential(*hidden, torch.nn.Linear(width, len(weights))).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        errors = model(inputs).square().mean(0)
        (errors * weights.to(run.device)).mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """There are copies from pageable memory, and they are small."""
    sizes = [copy["args"]["bytes"] for copy in harness.named(trace, "Memcpy HtoD (Pageable")]
    harness.expect(len(sizes) >= len(harness.steps(trace)) - 1 > 0, "no copies from pageable memory")
    harness.expect(max(sizes) <= 1024, "there are copies of more than a kilobyte")


if __name__ == "__main__":
    main()
