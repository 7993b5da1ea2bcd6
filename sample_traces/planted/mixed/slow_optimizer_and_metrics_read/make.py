"""The optimizer updates one parameter after the other, and metrics are read from the GPU one by one."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 49152, "medium": 12288, "strong": 2048}
LAYERS, OUTPUTS = 3, 12


def main() -> None:
    """Train."""
    run = harness.start()
    scale = 1 if run.device.type == "cuda" else 32
    rows, width = ROWS[run.level] // scale, 2048 // scale
    with run.device:
        inputs = torch.rand(rows, width, dtype=torch.bfloat16)
        hidden = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        model = torch.nn.Sequential(*hidden, torch.nn.Linear(width, OUTPUTS)).bfloat16()
    fused = run.fixes("optimizer")
    optimizer = torch.optim.Adam(model.parameters(), fused=fused, foreach=False)
    history: list[list[float]] = []
    for _ in run:
        optimizer.zero_grad()
        outputs = model(inputs)
        outputs.square().mean().backward()
        optimizer.step()
        means = outputs.detach().mean(0)
        history.append(means.tolist() if run.fixes("metrics") else [mean.item() for mean in means])


def verify(trace: Path) -> None:
    """The optimizer's step holds several ops for every parameter, and several numbers are read in every step."""
    spans, steps = harness.spans(trace), len(harness.steps(trace))
    updates = [span for span in spans if span["name"] == "aten::addcdiv_"]
    reads = [span for span in spans if span["name"] == "aten::item"]
    harness.expect(len(updates) >= 2 * LAYERS * (steps - 1) > 0, "the optimizer does its work in few ops")
    harness.expect(len(reads) >= OUTPUTS * (steps - 1), "hardly any numbers are read")


if __name__ == "__main__":
    main()
