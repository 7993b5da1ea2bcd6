"""An autoencoder that keeps an average of its weights and clips its gradients, all weights at once."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from sample_traces import harness

CHANNELS = {"weak": 8, "medium": 16, "strong": 32}


def main() -> None:
    """Train."""
    run = harness.start()
    channels = CHANNELS[run.level]
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, channels, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(channels, 1, 4, stride=2, padding=1),
    )
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.rand(32, 1, 28, 28)
    for _ in run:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(images), images).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)


def verify(trace: Path) -> None:
    """Every step moves the average at once."""
    moved = harness.named(trace, "aten::_foreach_lerp_")
    harness.expect(len(moved) >= len(harness.steps(trace)), "there is no average")


if __name__ == "__main__":
    main()
