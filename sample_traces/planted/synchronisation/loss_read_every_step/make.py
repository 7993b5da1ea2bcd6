"""The loss is read in every step, and the host has work to do before it launches the next."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

PIXELS = {"weak": 128, "medium": 512, "strong": 2048}


def main() -> None:
    """Train on images of bytes, and count on the host how bright they are."""
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total: torch.Tensor | float = 0.0
    while True:
        for batch in batches:
            brightness += torch.bincount(batch.view(-1), minlength=256)
            inputs = batch.to(run.device, non_blocking=True).bfloat16() / 255
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.detach() if run.fixed else loss.item()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """A number is read in every step."""
    reads = [span for span in harness.named(trace, "aten::item") if span["cat"] == "cpu_op"]
    harness.expect(len(reads) >= len(harness.steps(trace)) - 1 > 0, "numbers are not read in every step")


if __name__ == "__main__":
    main()
