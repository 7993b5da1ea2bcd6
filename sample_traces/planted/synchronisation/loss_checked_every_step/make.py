"""The loss is checked for NaN in every step, and the host has work to do before it launches the next."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

FEATURES = {"weak": 192, "medium": 640, "strong": 1536}
SELDOM = 100


def main() -> None:
    """Train, and follow on the host how the mean of the inputs drifts."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    features, scale = FEATURES[run.level], 1 if on_gpu else 32
    rows, width = 8192 // scale, 4096 // scale
    batches = torch.rand(2, rows, features, pin_memory=on_gpu)
    drift = torch.zeros(features)
    with run.device:
        hidden = [layer for _ in range(4) for layer in (torch.nn.GELU(), torch.nn.Linear(width, width))]
        model = torch.nn.Sequential(torch.nn.Linear(features, width), *hidden).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = 0
    while True:
        for batch in batches:
            number += 1
            drift.lerp_(batch.mean(0), 0.01)
            inputs = batch.to(run.device, non_blocking=True)
            optimizer.zero_grad()
            loss = model(inputs.bfloat16()).square().mean()
            loss.backward()
            if number % (SELDOM if run.fixed else 1) == 0 and torch.isnan(loss):
                raise FloatingPointError(f"the loss of step {number} is not a number")
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step asks whether the loss is a number."""
    checks = [span for span in harness.named(trace, "aten::is_nonzero") if span["cat"] == "cpu_op"]
    harness.expect(len(checks) >= len(harness.steps(trace)) - 1 > 0, "the loss is not checked in every step")


if __name__ == "__main__":
    main()
