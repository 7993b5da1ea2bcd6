"""The loss is read and printed every 100 steps, which costs nothing."""

from __future__ import annotations

import sys

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


if __name__ == "__main__":
    main()
