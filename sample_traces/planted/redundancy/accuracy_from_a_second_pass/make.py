"""Every step computes answers twice: for the loss, and to count how many are right."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

AGAIN = {"weak": 8, "medium": 24, "strong": 64}
ROWS, WIDTH = 64, 1024


def main() -> None:
    """Train."""
    run = harness.start()
    again = AGAIN[run.level]
    model = torch.nn.Sequential(
        torch.nn.Linear(256, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.rand(ROWS, 256), torch.randint(10, (ROWS,))
    right = torch.zeros((), dtype=torch.int64)
    for _ in run:
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        answers = scores[:again] if run.fixed else model(inputs[:again])
        right += (answers.argmax(dim=1) == labels[:again]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step has six layers forward."""
    forward = [span for span in harness.spans(trace) if span["name"] == "aten::linear"]
    harness.expect(len(forward) >= 6 * (len(harness.steps(trace)) - 1), "there is one forward pass")


if __name__ == "__main__":
    main()
