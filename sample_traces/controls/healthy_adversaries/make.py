"""A generator and its critic learn in turn, each from its own loss, on rows in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 320, "medium": 448, "strong": 640}
BATCH, NOISE, PIXELS = 64, 64, 784


def mlp(wide: int, width: int, out: int) -> torch.nn.Sequential:
    """Three linear layers."""
    return torch.nn.Sequential(
        torch.nn.Linear(wide, width),
        torch.nn.LeakyReLU(0.2, inplace=True),
        torch.nn.Linear(width, width),
        torch.nn.LeakyReLU(0.2, inplace=True),
        torch.nn.Linear(width, out),
    )


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    real = torch.randn(2048, PIXELS)
    maker, critic = mlp(NOISE, width, PIXELS), mlp(PIXELS, width, 1)
    makers, critics = list(maker.parameters()), list(critic.parameters())
    average = [one.detach().clone() for one in makers]
    maker_steps = torch.optim.Adam(makers, lr=2e-4, betas=(0.5, 0.999), fused=True)
    critic_steps = torch.optim.Adam(critics, lr=2e-4, betas=(0.5, 0.999), fused=True)
    said_real, said_fake = torch.full((BATCH, 1), 0.9), torch.zeros(BATCH, 1)
    said, wanted = torch.cat([said_real, said_fake]), torch.ones(BATCH, 1)
    number, history = 0, []
    while True:
        for rows in torch.randperm(len(real)).split(BATCH):
            number += 1
            fakes = maker(torch.randn(BATCH, NOISE))
            told = critic(torch.cat([real[rows], fakes.detach()]))
            critic_loss = torch.nn.functional.binary_cross_entropy_with_logits(told, said)
            critic_loss.backward()
            critic_steps.step()
            critic_steps.zero_grad()
            maker_loss = torch.nn.functional.binary_cross_entropy_with_logits(critic(fakes), wanted)
            maker_loss.backward(inputs=makers)
            maker_steps.step()
            maker_steps.zero_grad()
            if number % 10 == 0:
                with torch.no_grad():
                    torch._foreach_lerp_(average, makers, 0.01)
                history.append((number, critic_loss.item(), maker_loss.item()))
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Both optimizers update all their weights at once."""
    updates = harness.named(trace, "aten::_fused_adam_")
    count = len(harness.steps(trace))
    harness.expect(2 * count <= len(updates) <= 2 * count + 4, "updates are not fused")


if __name__ == "__main__":
    main()
