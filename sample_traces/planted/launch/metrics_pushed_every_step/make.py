"""After every step the training waits until a metrics service has answered."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from sample_traces import harness

ANSWER_S = {"weak": 0.001, "medium": 0.004, "strong": 0.02}


def push(loss: float, answer_s: float) -> None:
    """Send a number, and wait for the answer."""
    time.sleep(answer_s if loss >= 0 else 0)


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(torch.nn.Linear(784, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 784)
    number = 0
    while True:
        number += 1
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        if number % (1000 if run.fixed else 1) == 0:
            push(loss.item(), ANSWER_S[run.level])
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Steps hold a stretch of a millisecond or more without an op."""
    harness.expect(sum(pause >= 1000 for pause in harness.pauses_us(trace)) >= 3, "nothing waits")


if __name__ == "__main__":
    main()
