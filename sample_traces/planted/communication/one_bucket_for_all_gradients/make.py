"""DistributedDataParallel reduces all gradients at once, when the backward pass has ended."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

TOKENS = {"weak": 16384, "medium": 4096, "strong": 2048}
LAYERS = 3
HUGE_MB, DEFAULT_MB = 1000, 25


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (2048, 4) if run.device.type == "cpu" else (8192, TOKENS[run.level])
    with run.device:
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.GELU())]
        inputs = torch.randn(tokens, width)
    cap = DEFAULT_MB if run.fixed else HUGE_MB
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=cap, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            outputs = model(inputs)
        outputs.float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step reduces once."""
    reduced = len(harness.named(trace, "c10d::allreduce_"))
    harness.expect(0 < reduced <= len(harness.steps(trace)), "gradients are reduced in several buckets, or not at all")


if __name__ == "__main__":
    main()
