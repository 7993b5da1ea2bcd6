"""A flow of coupling layers, which learns the density of rows in memory."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 320, "medium": 448, "strong": 576}
BATCH, NUMBERS, LAYERS = 256, 32, 4


class Coupling(torch.nn.Module):
    """Moves and scales one half of the numbers by what the other half says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(NUMBERS // 2, width),
            torch.nn.ReLU(inplace=True),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(inplace=True),
            torch.nn.Linear(width, NUMBERS),
        )

    def forward(self, kept: torch.Tensor, moved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The moved half, and the logarithm of how much each row grew."""
        scale, shift = self.net(kept).chunk(2, dim=1)
        scale = scale.tanh()
        return torch.addcmul(shift, moved, scale.exp()), scale.sum(dim=1)


def main() -> None:
    """Train."""
    run = harness.start()
    rows = torch.randn(4096, NUMBERS, device=run.device).cumsum(dim=1).div_(4)
    layers = torch.nn.ModuleList([Coupling(WIDTH[run.level]) for _ in range(LAYERS)]).to(run.device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-4, fused=True)
    constant = 0.5 * NUMBERS * math.log(2 * math.pi)
    number, bits = 0, []
    while True:
        for chosen in torch.randperm(len(rows)).split(BATCH):
            number += 1
            optimizer.zero_grad()
            seen = rows[chosen]
            left, right = (seen + 0.01 * torch.rand_like(seen)).chunk(2, dim=1)
            grown = torch.zeros(BATCH, device=run.device)
            for layer in layers:
                moved, more = layer(left, right)
                left, right, grown = moved, left, grown + more
            squares = left.square().sum(dim=1) + right.square().sum(dim=1)
            loss = (0.5 * squares - grown).mean() + constant
            loss.backward()
            optimizer.step()
            if number % 20 == 0:
                bits = [*bits[-9:], loss.item() / NUMBERS / math.log(2)]
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step goes through all layers."""
    grown = [span for span in harness.spans(trace) if span["name"] == "aten::exp"]
    harness.expect(len(grown) >= LAYERS * len(harness.steps(trace)), "there are too few coupling layers")


if __name__ == "__main__":
    main()
