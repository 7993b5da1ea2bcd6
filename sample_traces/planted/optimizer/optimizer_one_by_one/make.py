"""Adam updates one parameter after the other, and passes over each many times."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

BATCH = {"weak": 768, "medium": 128, "strong": 16}
LAYERS = 4
WIDTH = {"cpu": 512, "cuda": 4096}


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.device.type]
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width, bias=False), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False, fused=run.fixed)
    inputs = torch.rand(BATCH[run.level], width, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step updates each parameter by itself."""
    updates = sum(span["name"] == "aten::addcdiv_" for span in harness.spans(trace))
    harness.expect(updates >= LAYERS * len(harness.steps(trace)), "parameters are not updated one by one")


if __name__ == "__main__":
    main()
