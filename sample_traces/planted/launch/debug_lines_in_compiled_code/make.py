"""A debug line, which prints nothing, splits compiled code into pieces."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 1536, "medium": 512, "strong": 4}
FEATURES = {"cpu": 8192, "cuda": 2097152}

log = logging.getLogger(__name__)


class Blocks(torch.nn.Module):
    """Scales, shifts and cuts off, four times."""

    def __init__(self, talks: bool) -> None:
        super().__init__()
        self.talks = talks
        self.scales = torch.nn.Parameter(torch.rand(4) + 0.5)

    def block(self, number: int, inputs: torch.Tensor) -> torch.Tensor:
        """One of the four."""
        outputs = torch.relu(inputs * self.scales[number] + 0.1)
        if self.talks:
            log.debug("block %d: %s", number, outputs.shape)
        return outputs

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return as many numbers as come in."""
        first = self.block(0, inputs)
        second = self.block(1, first)
        third = self.block(2, second)
        return self.block(3, third)


def main() -> None:
    """Train."""
    run = harness.start()
    width, features = WIDTH[run.level], FEATURES[run.device.type]
    model = torch.nn.Linear(width, features).to(run.device)
    blocks = torch.compile(Blocks(talks=not run.fixed).to(run.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(8, width, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        blocks(model(inputs)).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """One call of compiled code runs several pieces."""
    pieces = len(harness.named(trace, "Torch-Compiled Region"))
    harness.expect(pieces >= 3 * len(harness.steps(trace)), "compiled code runs as a whole")


if __name__ == "__main__":
    main()
