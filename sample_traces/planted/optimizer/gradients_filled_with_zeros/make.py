"""Gradients are filled with zeros, and added to, instead of being made anew."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

BATCH = {"weak": 48, "medium": 16, "strong": 1}
WIDTH = {"cpu": 1024, "cuda": 8192}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.device.type]
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(BATCH[run.level], width, device=run.device)
    for _ in run:
        optimizer.zero_grad(set_to_none=run.fixed)
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Zeros are written while gradients are zeroed."""
    zeros = [span for span in harness.spans(trace) if span["name"] in ("aten::zero_", "aten::_foreach_zero_")]
    calls = harness.named(trace, "Optimizer.zero_grad")
    harness.expect(len(calls) >= 3, "gradients are not zeroed in every step")
    harness.expect(all(any(harness.within(zeros, call)) for call in calls), "no zeros are written")


if __name__ == "__main__":
    main()
