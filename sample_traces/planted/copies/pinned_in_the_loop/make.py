"""Every batch is pinned in the training loop, on the thread that launches the work."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

FEATURES = {"weak": 128, "medium": 640, "strong": 4096}


def main() -> None:
    """Train in half precision, whose scaler looks for overflows at the end of each step."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    features, scale = FEATURES[run.level], 1 if on_gpu else 64
    rows, width = 4096 // scale, 4096 // scale
    batches = torch.rand(2, rows, features)
    if run.fixed and on_gpu:
        batches = batches.pin_memory()
    with run.device:
        hidden = [layer for _ in range(5) for layer in (torch.nn.GELU(), torch.nn.Linear(width, width))]
        model = torch.nn.Sequential(torch.nn.Linear(features, width), *hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(run.device.type)
    while True:
        for batch in batches:
            optimizer.zero_grad()
            pinned = batch if run.fixed or not on_gpu else batch.pin_memory()
            inputs = pinned.to(run.device, non_blocking=True)
            with torch.autocast(run.device.type, torch.float16):
                loss = model(inputs).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step pins memory."""
    pins = [span for span in harness.named(trace, "aten::_pin_memory") if span["cat"] == "cpu_op"]
    harness.expect(len(pins) >= len(harness.steps(trace)) - 1 > 0, "no batches pinned in the loop")


if __name__ == "__main__":
    main()
