"""Grouped convolutions with long filters take the algorithm that cuDNN guesses, which has not measured any."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from sample_traces import harness

WAVES = {"weak": 4, "medium": 16, "strong": 64}  # Waves that the critic hears, of all that are generated.


def main() -> None:
    """Train."""
    run = harness.start()
    width, batch = (512, 64) if run.device.type == "cpu" else (4096, 4096)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = run.fixed
    with run.device:
        generator = torch.nn.Sequential(
            torch.nn.Linear(width, width, bias=False),
            torch.nn.GELU(),
            torch.nn.Linear(width, width, bias=False),
            torch.nn.GELU(),
            torch.nn.Linear(width, width, bias=False),
        )
        critic = torch.nn.Sequential(
            torch.nn.Conv1d(1, 128, 15, padding=7, bias=False),
            torch.nn.LeakyReLU(0.1),
            torch.nn.Conv1d(128, 128, 41, stride=2, padding=20, groups=4, bias=False),
            torch.nn.LeakyReLU(0.1),
            torch.nn.Conv1d(128, 256, 41, stride=2, padding=20, groups=16, bias=False),
            torch.nn.LeakyReLU(0.1),
            torch.nn.Conv1d(256, 512, 41, stride=4, padding=20, groups=16, bias=False),
        )
        noise = torch.randn(batch, width)
    optimizer = torch.optim.SGD([*generator.parameters(), *critic.parameters()], lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        waves = generator(noise)
        heard = critic(waves[: WAVES[run.level], None])
        (waves.square().mean() + heard.square().mean()).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """There are convolutions, and the run's settings, which lie beside, say that none was measured."""
    convolutions = harness.named(trace, "aten::convolution")
    harness.expect(len(convolutions) >= 4 * len(harness.steps(trace)), "hardly any convolutions")
    manifest = json.loads(trace.with_name("manifest.json").read_text(encoding="utf-8"))
    harness.expect(manifest["ranks"][0]["flags"]["cudnn_benchmark"] is False, "cuDNN measures its algorithms")


if __name__ == "__main__":
    main()
