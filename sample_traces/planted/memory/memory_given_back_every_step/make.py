"""A denoiser of pictures: what it frees in a step goes back to the system, and is fetched again in the next."""

from __future__ import annotations

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


if __name__ == "__main__":
    main()
