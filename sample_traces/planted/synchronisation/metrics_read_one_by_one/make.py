"""The mean of every output is read from the GPU by a call of its own."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

OUTPUTS = {"weak": 5, "medium": 18, "strong": 64}


def main() -> None:
    """Train."""
    run = harness.start()
    scale = 1 if run.device.type == "cuda" else 16
    rows, width = 2048 // scale, 4096 // scale
    with run.device:
        inputs = torch.rand(rows, width, dtype=torch.bfloat16)
        hidden = [layer for _ in range(2) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        model = torch.nn.Sequential(*hidden, torch.nn.Linear(width, OUTPUTS[run.level])).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history: list[list[float]] = []
    for _ in run:
        optimizer.zero_grad()
        outputs = model(inputs)
        outputs.square().mean().backward()
        optimizer.step()
        means = outputs.detach().mean(0)
        history.append(means.tolist() if run.fixed else [mean.item() for mean in means])


def verify(trace: Path) -> None:
    """Several numbers are read in every step."""
    reads = [span for span in harness.named(trace, "aten::item") if span["cat"] == "cpu_op"]
    harness.expect(len(reads) >= 4 * len(harness.steps(trace)) > 0, "hardly any numbers are read")


if __name__ == "__main__":
    main()
