"""The loss is written out: softmax, its logarithm, and a product with one-hot labels."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 2048, "medium": 192, "strong": 8}
BATCH = {"cpu": 128, "cuda": 4096}
CLASSES = {"cpu": 4096, "cuda": 32768}


def written_out(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, as in a textbook."""
    wanted = torch.nn.functional.one_hot(labels, scores.shape[-1])
    return -(wanted * scores.softmax(-1).log()).sum(-1).mean()


def main() -> None:
    """Train."""
    run = harness.start()
    criterion = torch.nn.functional.cross_entropy if run.fixed else written_out
    width, size, classes = WIDTH[run.level], BATCH[run.device.type], CLASSES[run.device.type]
    model = torch.nn.Linear(width, classes).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(size, width, device=run.device)
    labels = torch.randint(classes, (size,), device=run.device)
    for _ in run:
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step makes one-hot labels and a logarithm of its own."""
    count = len(harness.steps(trace))
    for op in ("aten::one_hot", "aten::log"):
        found = sum(span["name"] == op for span in harness.spans(trace))
        harness.expect(found >= count, f"no {op} in every step")


if __name__ == "__main__":
    main()
