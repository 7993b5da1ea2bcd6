"""A diffusion model of feature vectors: blocks with residuals, told the time by a table of waves."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 256, "medium": 512, "strong": 768}
FEATURES, BATCH, TIMES, WAVES = 64, 256, 1000, 64


class Denoiser(torch.nn.Module):
    """Guesses the noise in its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        angles = torch.arange(TIMES)[:, None] * torch.logspace(0, -4, WAVES // 2)
        self.register_buffer("waves", torch.cat([angles.sin(), angles.cos()], dim=1))
        self.enter = torch.nn.Linear(FEATURES + WAVES, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
            for _ in range(2)
        )
        self.leave = torch.nn.Linear(width, FEATURES)

    def forward(self, noisy: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """The noise."""
        states = self.enter(torch.cat([noisy, self.waves[times]], dim=1))
        for block in self.blocks:
            states = states + block(states)
        return self.leave(states)


def main() -> None:
    """Train."""
    run = harness.start()
    model = Denoiser(WIDTH[run.level])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, TIMES), dim=0)[:, None]
    signal, spread = kept.sqrt(), (1 - kept).sqrt()
    table = torch.randn(8192, FEATURES)
    while True:
        for rows in torch.randperm(len(table)).split(BATCH):
            clean, times = table[rows], torch.randint(TIMES, (BATCH,))
            noise = torch.randn_like(clean)
            optimizer.zero_grad()
            guess = model(signal[times] * clean + spread[times] * noise, times)
            torch.nn.functional.mse_loss(guess, noise).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step draws noise, and has one optimizer step for all weights together."""
    many = len(harness.steps(trace)) - 1
    harness.expect(len(harness.named(trace, "aten::randn_like")) >= many, "there is no noise")
    harness.expect(len(harness.named(trace, "aten::_fused_adamw")) >= many, "the optimizer is not fused")


if __name__ == "__main__":
    main()
