"""A hinge-loss GAN on tabular rows, whose critic loss is not cut off from the generator."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 48, "medium": 256, "strong": 1024}  # Of the generator.

CRITIC_STEPS = 5
NOISE, COLUMNS, ROWS = 64, 64, 128


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    generator = torch.nn.Sequential(
        torch.nn.Linear(NOISE, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, COLUMNS),
        torch.nn.Tanh(),
    )
    critic = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 512), torch.nn.LeakyReLU(0.2), torch.nn.Linear(512, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9), fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.9), fused=True)
    sides = torch.cat([torch.ones(ROWS, 1), -torch.ones(ROWS, 1)])
    table = torch.rand(4096, COLUMNS) * 2 - 1
    for _ in run:
        for _ in range(CRITIC_STEPS):
            real = table[torch.randint(len(table), (ROWS,))]
            fakes = generator(torch.randn(ROWS, NOISE))
            if run.fixed:
                fakes = fakes.detach()
            critic_optimizer.zero_grad()
            torch.relu(1 - sides * critic(torch.cat([real, fakes]))).mean().backward()
            critic_optimizer.step()
        critic.requires_grad_(False)
        generator_optimizer.zero_grad()
        (-critic(generator(torch.randn(ROWS, NOISE))).mean()).backward()
        generator_optimizer.step()
        critic.requires_grad_(True)


def verify(trace: Path) -> None:
    """Gradients pass the end of the generator in every critic step, too."""
    passed = harness.named(trace, "evaluate_function: TanhBackward0")
    harness.expect(len(passed) > CRITIC_STEPS * (len(harness.steps(trace)) - 1), "few gradients enter the generator")


if __name__ == "__main__":
    main()
