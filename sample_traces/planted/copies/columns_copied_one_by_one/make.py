"""The columns of a table are copied to the GPU one by one."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

COLUMNS = {"weak": 4, "medium": 14, "strong": 48}


def main() -> None:
    """Train."""
    run = harness.start()
    scale = 1 if run.device.type == "cuda" else 16
    rows, width = 2048 // scale, 4096 // scale
    columns = [torch.rand(rows) for _ in range(COLUMNS[run.level])]
    with run.device:
        model = torch.nn.Sequential(
            torch.nn.Linear(len(columns), width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
        ).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        if run.fixed:
            table = torch.stack(columns).to(run.device)
        else:
            table = torch.stack([column.to(run.device) for column in columns])
        model(table.T.bfloat16()).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Several small copies to the GPU in every step."""
    small = sum(copy["args"]["bytes"] < 65536 for copy in harness.named(trace, "Memcpy HtoD"))
    harness.expect(small >= 3 * len(harness.steps(trace)) > 0, "few small copies to the GPU")


if __name__ == "__main__":
    main()
