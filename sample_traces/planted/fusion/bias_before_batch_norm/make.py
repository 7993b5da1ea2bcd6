"""Convolutions add a bias that the batch norm behind them takes away again."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

CHANNELS = {"weak": 256, "medium": 128, "strong": 32}
SIDE = {"weak": 64, "medium": 128, "strong": 256}
LAYERS = 3


def main() -> None:
    """Train."""
    run = harness.start()
    small = run.device.type == "cpu"
    channels, side, batch = (16, 8, 2) if small else (CHANNELS[run.level], SIDE[run.level], 64)
    with run.device:
        layers: list[torch.nn.Module] = []
        for _ in range(LAYERS):
            layers += [
                torch.nn.Conv2d(channels, channels, 3, padding=1, bias=not run.fixed),
                torch.nn.BatchNorm2d(channels),
                torch.nn.ReLU(inplace=True),
            ]
        model = torch.nn.Sequential(*layers, torch.nn.Conv2d(channels, 8, 1, bias=False))
        images = torch.randn(batch, channels, side, side)
    model = model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            outputs = model(images)
        outputs.float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Each layer gets four gradients: weight and bias, of the convolution and of the norm."""
    gradients = sum(span["name"] == "torch::autograd::AccumulateGrad" for span in harness.spans(trace))
    harness.expect(gradients >= (4 * LAYERS + 1) * len(harness.steps(trace)), "the convolutions have no bias")


if __name__ == "__main__":
    main()
