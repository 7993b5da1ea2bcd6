"""The last layers of a model are called outside of autocast, and compute in 32 bits."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

LAYERS = 8
OUTSIDE = {"weak": 1, "medium": 3, "strong": LAYERS}


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (64, 32) if run.device.type == "cpu" else (4096, 8192)
    torch.set_float32_matmul_precision("high")
    inside = LAYERS - OUTSIDE[run.level]
    with run.device:
        encoder, decoder = layers(inside, width), layers(OUTSIDE[run.level], width)
        inputs = torch.randn(tokens, width)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            features = encoder(inputs)
        with torch.autocast(run.device.type, torch.bfloat16, enabled=run.fixed):
            outputs = decoder(features.float())
        outputs.float().square().mean().backward()
        optimizer.step()


def layers(number: int, width: int) -> torch.nn.Sequential:
    """So many layers."""
    parts = [part for _ in range(number) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.GELU())]
    return torch.nn.Sequential(*parts)


def verify(trace: Path) -> None:
    """Autocast records a layer twice, with and within its casts; some are recorded once."""
    calls = sum(span["name"] == "aten::linear" for span in harness.spans(trace))
    steps = len(harness.steps(trace))
    harness.expect(LAYERS * steps <= calls < 2 * LAYERS * steps, "all layers are under autocast")


if __name__ == "__main__":
    main()
