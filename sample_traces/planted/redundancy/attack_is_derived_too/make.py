"""Images are attacked along signs of slopes; these can be derived again, and the loss goes back through them."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ATTACKED = {"weak": (4, 1), "medium": (32, 2), "strong": (512, 1)}
"""Rows that are attacked, and in how many moves."""
IMAGES, PIXELS, WIDTH, CLASSES, BATCH, PACE = 2048, 256, 640, 10, 512, 0.02


def main() -> None:
    """Train."""
    run = harness.start()
    attacked, moves = ATTACKED[run.level]
    model = torch.nn.Sequential(
        torch.nn.Linear(PIXELS, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, CLASSES),
    ).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.rand(IMAGES, PIXELS, device=run.device)
    labels = torch.randint(CLASSES, (IMAGES,), device=run.device)
    while True:
        chosen = torch.randint(IMAGES, (BATCH,), device=run.device)
        seen, named = images[chosen], labels[chosen]
        moved = seen[:attacked].clone().requires_grad_()
        for _ in range(moves):
            told = torch.nn.functional.cross_entropy(model(moved), named[:attacked])
            (slope,) = torch.autograd.grad(told, moved, create_graph=not run.fixed)
            moved = (moved + PACE * slope.sign()).clamp(0, 1)
        if run.fixed:
            moved = moved.detach()
        loss = torch.nn.functional.cross_entropy(model(torch.cat([moved, seen[attacked:]])), named)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step goes back through the signs of slopes."""
    number = len(harness.steps(trace))
    signs = [span for span in harness.spans(trace) if span["name"] == "SignBackward0"]
    harness.expect(len(signs) >= number - 1, "the signs of slopes are not derived")


if __name__ == "__main__":
    main()
