"""A denoiser of pictures: what it frees in a step goes back to the system, and is fetched again in the next."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from sample_traces import harness

PICTURES = {"weak": 4, "medium": 12, "strong": 40}
CHANNELS, SIZE = 32, 64


class Denoiser(torch.nn.Module):
    """Takes the noise off pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.out = torch.nn.Conv2d(CHANNELS, 3, 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures without it."""
        return self.out(torch.relu(self.enter(pictures)))


def main() -> None:
    """Train."""
    run = harness.start(keeps_memory=False)
    if run.fixed:
        harness.keep_memory()
    count = PICTURES[run.level]
    clean = torch.rand(4 * count, 3, SIZE, SIZE, device=run.device)
    noisy = clean + 0.1 * torch.randn_like(clean)
    model = Denoiser().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    while True:
        for first in range(0, len(clean), count):
            optimizer.zero_grad()
            found = model(noisy[first : first + count])
            torch.nn.functional.mse_loss(found, clean[first : first + count]).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Activations are not too large to be kept, and steps fetch memory all the same."""
    known = json.loads(trace.with_name("manifest.json").read_text(encoding="utf-8"))["ranks"][0]
    trace = trace.with_name("rank0.detail.json.gz")
    made = [span["args"]["Input Dims"][0] for span in harness.spans(trace) if span["name"] == "aten::relu"]
    sizes = [4 * math.prod(shape) for shape in made]
    harness.expect(len(sizes) >= len(harness.steps(trace)), "activations are seldom made")
    harness.expect(1 << 20 < min(sizes) < 32 << 20, "activations are of another size")
    harness.expect(known["unprofiled"]["fetched_bytes"] > max(sizes) / 8, "memory is kept")


if __name__ == "__main__":
    main()
