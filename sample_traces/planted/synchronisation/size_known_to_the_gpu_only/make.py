"""Large losses are selected by a mask in every step: the host waits to learn how many there are."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

PIXELS = {"weak": 128, "medium": 512, "strong": 2048}


def main() -> None:
    """Train on images of bytes, count on the host how bright they are, and add up the large losses."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    pixels, scale = PIXELS[run.level], 1 if on_gpu else 32
    rows, width = 8192 // scale, 4096 // scale
    batches = torch.randint(256, (2, rows, pixels), dtype=torch.uint8)
    if on_gpu:
        batches = batches.pin_memory()
    brightness = torch.zeros(256, dtype=torch.int64)
    with run.device:
        hidden = [layer for _ in range(4) for layer in (torch.nn.GELU(), torch.nn.Linear(width, width))]
        model = torch.nn.Sequential(torch.nn.Linear(pixels, width), *hidden).bfloat16()
        hard = torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for batch in batches:
            brightness += torch.bincount(batch.view(-1), minlength=256)
            inputs = batch.to(run.device, non_blocking=True).bfloat16() / 255
            optimizer.zero_grad()
            losses = model(inputs).float().square().mean(1)
            losses.mean().backward()
            optimizer.step()
            losses = losses.detach()
            large = losses > losses.mean()
            hard += torch.where(large, losses, 0).sum() if run.fixed else losses[large].sum()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step asks where a mask holds."""
    asked = [span for span in harness.named(trace, "aten::nonzero") if span["cat"] == "cpu_op"]
    harness.expect(len(asked) >= len(harness.steps(trace)) - 1 > 0, "no result depends on the data in its size")


if __name__ == "__main__":
    main()
