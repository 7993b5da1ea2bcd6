"""Layers whose norms and activations are written op by op."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WORDS = {"weak": 64, "medium": 512, "strong": 4096}
INNER = {"weak": 256, "medium": 128, "strong": 32}
WIDTH = 256


class Block(torch.nn.Module):
    """A norm, a layer and its way around."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))
        self.into, self.out = torch.nn.Linear(WIDTH, inner), torch.nn.Linear(inner, WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Words to words."""
        normed = words * torch.rsqrt(words.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        inner = self.into(normed)
        gated = inner * torch.sigmoid(1.702 * inner)
        return words + 0.5 * self.out(gated)


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(*(Block(INNER[run.level]) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    words = torch.rand(WORDS[run.level], WIDTH)
    forward = torch.compile(model) if run.fixed else model
    for _ in run:
        optimizer.zero_grad()
        forward(words).mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step takes roots by an op of its own."""
    taken = [span for span in harness.spans(trace) if span["name"] == "aten::rsqrt"]
    harness.expect(len(taken) >= 4 * len(harness.steps(trace)), "norms are compiled")


if __name__ == "__main__":
    main()
