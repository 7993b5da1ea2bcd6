"""The loss is read and printed every 100 steps, which costs nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 512, "medium": 1024, "strong": 2048}


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    rows, width = 64, WIDTH[run.level]
    if on_gpu:
        rows, width = 512 * rows, 4 * width
    kind = torch.bfloat16 if on_gpu else torch.float32
    with run.device:
        model = torch.nn.Sequential(torch.nn.Linear(784, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
        inputs = torch.rand(rows, 784).to(kind)
    model.to(kind)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        if number % 100 == 0:
            print(f"{number}: {loss.item():.3f}", file=sys.stderr)
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Hardly any number is read, but by Adam, which reads its own step count."""
    spans = harness.spans(trace)
    steps = sum(span["name"].startswith("ProfilerStep#") for span in spans)
    own = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"].startswith("Optimizer.step")]
    reads = [span["ts"] for span in spans if span["name"] == "aten::item"]
    others = sum(not any(start <= moment < end for start, end in own) for moment in reads)
    harness.expect(others <= steps // 4, "numbers are read all the time")


if __name__ == "__main__":
    main()
