"""A thread beside the training writes JSON, and holds the interpreter's lock meanwhile."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path

import torch

from sample_traces import harness

REST_S = {"weak": 0.08, "medium": 0.02, "strong": 0.004}
FIGURES = 100_000


def watch(rest_s: float) -> None:
    """Write figures for a dashboard as JSON, again and again, with a rest between."""
    figures = list(range(FIGURES))
    while True:
        json.dumps(figures)
        time.sleep(rest_s)


def main() -> None:
    """Train."""
    run = harness.start()
    beside = multiprocessing.Process if run.fixed else threading.Thread
    beside(target=watch, args=(REST_S[run.level],), daemon=True).start()
    model = torch.nn.Sequential(torch.nn.Linear(784, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 784)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Ops are held up for milliseconds, as long as a thread may keep the interpreter's lock."""
    harness.expect(max(harness.pauses_us(trace)) > 3_000, "nothing holds the training up")


if __name__ == "__main__":
    main()
