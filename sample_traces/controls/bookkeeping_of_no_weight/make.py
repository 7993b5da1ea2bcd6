"""Python keeps books after every step, in less than a hundredth of it."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 1024, "medium": 1280, "strong": 1536}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    model = torch.nn.Sequential(torch.nn.Linear(784, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 784)
    began: deque[float] = deque(maxlen=100)
    seen: dict[str, float] = {}
    for _ in run:
        began.append(time.perf_counter())
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if not run.fixed:
            laps = sorted(later - earlier for earlier, later in zip(list(began), list(began)[1:], strict=False))
            seen.update({f"percentile {share}": laps[len(laps) * share // 100] for share in range(10, 100, 10) if laps})
            seen["samples"] = seen.get("samples", 0) + len(inputs)


def verify(trace: Path) -> None:
    """Between ops little time passes."""
    whole = sum(step["dur"] for step in harness.steps(trace))
    harness.expect(sum(harness.pauses_us(trace)) < 0.15 * whole, "Python takes a large share")


if __name__ == "__main__":
    main()
