"""The codes of an autoencoder are independent, yet drawn and compared with a matrix of covariances for each image."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, kl_divergence

from sample_traces import harness

CODES = {"weak": 6, "medium": 16, "strong": 40}
PIXELS, BATCH = 784, 128


class Autoencoder(torch.nn.Module):
    """Draws a code for an image, and the image from it."""

    def __init__(self, codes: int, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(PIXELS, 512), torch.nn.ReLU(inplace=True), torch.nn.Linear(512, 2 * codes)
        )
        self.decoder = torch.nn.Sequential(
            torch.nn.Linear(codes, 512), torch.nn.ReLU(inplace=True), torch.nn.Linear(512, PIXELS)
        )

    def normal(self, mean: torch.Tensor, variance: torch.Tensor) -> Distribution:
        """A distribution of codes."""
        if self.fixed:
            return Independent(Normal(mean, variance.sqrt()), 1)
        return MultivariateNormal(mean, torch.diag_embed(variance))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The bound of what it learns, to be minimised."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        codes = self.normal(mean, log_variance.exp())
        prior = self.normal(torch.zeros_like(mean), torch.ones_like(mean))
        drawn = self.decoder(codes.rsample())
        wrong = torch.nn.functional.binary_cross_entropy_with_logits(drawn, images, reduction="sum")
        bound: torch.Tensor = wrong / len(images) + kl_divergence(codes, prior).mean()
        return bound


def main() -> None:
    """Train."""
    run = harness.start()
    images = torch.rand(1024, PIXELS, device=run.device)
    model = Autoencoder(CODES[run.level], run.fixed).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    while True:
        for chosen in torch.randperm(1024).split(BATCH):
            optimizer.zero_grad()
            model(images[chosen]).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step factors covariances."""
    factored = [span for span in harness.spans(trace) if span["name"] == "aten::linalg_cholesky_ex"]
    harness.expect(len(factored) >= 2 * len(harness.steps(trace)), "no covariances are factored")


if __name__ == "__main__":
    main()
