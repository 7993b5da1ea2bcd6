"""Far more threads compute than there are cores, and wait for each other in every op."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from sample_traces import harness

TIMES_CORES = {"weak": 2, "medium": 4, "strong": 16}


def main() -> None:
    """Train."""
    cores = os.cpu_count() or 1
    run = harness.start(threads=cores)
    if not run.fixed:
        torch.set_num_threads(cores * TIMES_CORES[run.level])
    layers = [
        layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.GELU())
    ]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(128, 512)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """What was recorded with the trace says that more threads computed than there were cores."""
    manifest = json.loads(trace.with_name("manifest.json").read_text(encoding="utf-8"))
    threads = manifest["ranks"][0]["flags"]["threads"]
    harness.expect(threads >= 2 * manifest["host"]["cpus_allowed"], "there is a core for every thread")


if __name__ == "__main__":
    main()
