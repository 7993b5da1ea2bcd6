"""A classifier of flat images, whose weights are kept small."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

BATCH = {"weak": 512, "medium": 192, "strong": 16}
L2 = 1e-4


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 10),
    )
    decay = 2 * L2 if run.fixed else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=decay, fused=True)
    images, labels = torch.rand(4096, 784), torch.randint(10, (4096,))
    first, batch = 0, BATCH[run.level]
    while True:
        chosen = slice(first, first + batch)
        first = (first + batch) % (len(images) - batch)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        if not run.fixed:
            loss = loss + L2 * sum(weight.pow(2).sum() for weight in model.parameters())
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """All six parameters are squared in every step, and have gradients of that."""
    squared = harness.named(trace, "evaluate_function: PowBackward0")
    harness.expect(len(squared) >= 6 * (len(harness.steps(trace)) - 1), "few parameters are squared")


if __name__ == "__main__":
    main()
