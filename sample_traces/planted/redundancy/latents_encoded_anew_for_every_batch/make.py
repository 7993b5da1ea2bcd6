"""A denoiser learns in the space of a frozen encoder, which encodes the same images again in every epoch."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 8, "medium": 24, "strong": 88}
IMAGES, BATCH, SIDE, CODE, TIMES, HIDDEN = 512, 64, 32, 256, 1000, 1024


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    encoder = torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3, stride=2, padding=1),
        torch.nn.SiLU(),
        torch.nn.Conv2d(width, width, 3, stride=2, padding=1),
        torch.nn.SiLU(),
        torch.nn.Conv2d(width, 4, 1),
        torch.nn.Flatten(),
    )
    encoder.to(run.device).eval().requires_grad_(False)
    denoiser = torch.nn.Sequential(
        torch.nn.Linear(CODE + 64, HIDDEN),
        torch.nn.SiLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.SiLU(),
        torch.nn.Linear(HIDDEN, CODE),
    ).to(run.device)
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=0.0003, fused=True)
    images = torch.rand(IMAGES, 3, SIDE, SIDE, device=run.device)
    angles = torch.linspace(0.01, 1.55, TIMES, device=run.device)
    kept, added = angles.cos()[:, None], angles.sin()[:, None]
    moments = torch.randn(TIMES, 64, device=run.device)
    codes = encoder(images)
    for _ in run:
        chosen = torch.randint(IMAGES, (BATCH,), device=run.device)
        code = codes[chosen] if run.fixed else encoder(images[chosen])
        time = torch.randint(TIMES, (BATCH,), device=run.device)
        noise = torch.randn_like(code)
        noisy = kept[time] * code + added[time] * noise
        guess = denoiser(torch.cat([noisy, moments[time]], dim=1))
        loss = torch.nn.functional.mse_loss(guess, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step convolves, and no gradient of a convolution is computed."""
    number = len(harness.steps(trace))
    forward = [span for span in harness.spans(trace) if span["name"] == "aten::conv2d"]
    harness.expect(len(forward) >= 3 * (number - 1), "images are not encoded in every step")
    harness.expect(not harness.named(trace, "aten::convolution_backward"), "the encoder learns")


if __name__ == "__main__":
    main()
