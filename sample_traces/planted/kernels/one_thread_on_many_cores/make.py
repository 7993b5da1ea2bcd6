"""One thread computes, whatever the number of cores."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 4, "medium": 24, "strong": 128}


def main() -> None:
    """Train."""
    run = harness.start()
    if run.fixed:
        torch.set_num_threads(os.cpu_count() or 1)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(ROWS[run.level], 1024)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """What was recorded with the trace says that one thread computed, on several cores."""
    manifest = json.loads(trace.with_name("manifest.json").read_text(encoding="utf-8"))
    harness.expect(manifest["host"]["cpus_allowed"] > 1, "there is but one core")
    harness.expect(manifest["ranks"][0]["flags"]["threads"] == 1, "several threads compute")


if __name__ == "__main__":
    main()
