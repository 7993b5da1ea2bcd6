"""Large matrix multiplications in bf16 keep the GPU busy, and nothing is wrong."""

from __future__ import annotations

import torch

from sample_traces import harness

WIDTH = {"weak": 4096, "medium": 6144, "strong": 7168}
LAYERS = 3


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (64, 32) if run.device.type == "cpu" else (WIDTH[run.level], 16384)
    with run.device:
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers)
        inputs = torch.randn(tokens, width)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    while True:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            outputs = model(inputs)
        outputs.float().square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
