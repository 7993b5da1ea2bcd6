"""Convolutions in bf16 get their images in PyTorch's default order, channels first."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

CHANNELS = {"weak": 1024, "medium": 256, "strong": 64}
SIDE = {"weak": 28, "medium": 64, "strong": 224}
BATCH = {"weak": 32, "medium": 64, "strong": 64}
LAYERS = 4


def main() -> None:
    """Train."""
    run = harness.start()
    small = run.device.type == "cpu"
    channels, side, batch = (16, 8, 2) if small else (CHANNELS[run.level], SIDE[run.level], BATCH[run.level])
    layout = torch.channels_last if run.fixed else torch.contiguous_format
    with run.device:
        layers: list[torch.nn.Module] = []
        for _ in range(LAYERS):
            layers += [torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False), torch.nn.ReLU()]
        denoiser = torch.nn.Sequential(*layers, torch.nn.Conv2d(channels, 8, 1, bias=False))
        features = torch.randn(batch, channels, side, side)
    denoiser = denoiser.to(memory_format=layout)
    features = features.to(memory_format=layout)
    optimizer = torch.optim.SGD(denoiser.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            noise = denoiser(features)
        noise.float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Most convolutions convert the order of their images."""
    kernels = [span for span in harness.spans(trace) if span.get("cat") == "kernel"]
    conversions = sum("nchwtonhwc" in span["name"].lower() for span in kernels)
    harness.expect(conversions >= LAYERS * len(harness.steps(trace)), "hardly any layout is converted")


if __name__ == "__main__":
    main()
