"""An autoencoder with importance weights repeats its images before it encodes them, not after."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch

from sample_traces import harness

SIZES = {"weak": (2, 256), "medium": (3, 576), "strong": (8, 1024)}
"""Draws per image, and the width of the encoder."""
BATCH, PIXELS, CODE = 32, 784, 16


def mlp(*widths: int) -> torch.nn.Sequential:
    """Linear layers with ReLU between."""
    layers: list[torch.nn.Module] = []
    for wide, next_wide in itertools.pairwise(widths):
        layers += [torch.nn.Linear(wide, next_wide), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def main() -> None:
    """Train."""
    run = harness.start()
    draws, width = SIZES[run.level]
    images = torch.rand(1024, PIXELS)
    encoder, decoder = mlp(PIXELS, width, width, 2 * CODE), mlp(CODE, 384, PIXELS)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3, fused=True)
    while True:
        for batch in images[torch.randperm(len(images))].split(BATCH):
            optimizer.zero_grad()
            repeated = batch.repeat_interleave(draws, dim=0)
            code = encoder(batch).repeat_interleave(draws, dim=0) if run.fixed else encoder(repeated)
            mean, log_var = code.chunk(2, dim=1)
            noise = torch.randn_like(mean)
            drawn = mean + (log_var / 2).exp() * noise
            missed = torch.nn.functional.binary_cross_entropy_with_logits(
                decoder(drawn), repeated, reduction="none"
            ).sum(dim=1)
            prior_ratio = (noise.square() - drawn.square() + log_var).sum(dim=1) / 2
            weights = (prior_ratio - missed).view(-1, draws)
            (-weights.logsumexp(dim=1).mean()).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """The encoder's first layer gets more rows than there are images."""
    trace = trace.with_name("rank0.detail.json.gz")
    firsts = [span["args"]["Input Dims"] for span in harness.spans(trace) if span["name"] == "aten::linear"]
    rows = [dims[0][0] for dims in firsts if dims[0][1] == PIXELS]
    harness.expect(len(rows) >= len(harness.steps(trace)), "there is no encoder")
    harness.expect(min(rows) >= 2 * BATCH, "the encoder gets every image once")


if __name__ == "__main__":
    main()
