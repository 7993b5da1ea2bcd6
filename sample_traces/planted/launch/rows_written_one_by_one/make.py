"""Results are written into a tensor row by row."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 768, "medium": 160, "strong": 2}
ROWS = 8
COLUMNS = {"cpu": 16384, "cuda": 1048576}


def scaled(rows: torch.Tensor) -> torch.Tensor:
    """Of mean 0 and deviation 1 along the last dimension."""
    return torch.nn.functional.layer_norm(rows, rows.shape[-1:])


def main() -> None:
    """Train."""
    run = harness.start()
    width, columns = WIDTH[run.level], COLUMNS[run.device.type]
    model = torch.nn.Linear(width, columns).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(ROWS, width, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        signals = model(inputs)
        if run.fixed:
            outputs = scaled(signals)
        else:
            outputs = torch.empty_like(signals)
            for row in range(ROWS):
                outputs[row] = scaled(signals[row])
        outputs.square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step writes each row by itself, and so goes its backward pass."""
    copies = len(harness.named(trace, "CopySlices"))
    harness.expect(copies >= ROWS * len(harness.steps(trace)), "rows are written together")


if __name__ == "__main__":
    main()
