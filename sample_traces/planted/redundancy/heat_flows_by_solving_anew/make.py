"""Heat flows by implicit steps through a plate that never changes; each step solves with its matrix from scratch."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 2400, "medium": 768, "strong": 96}
SIDE, PLATES, MOMENTS, PACE = 20, 24, 4, 0.4


def plate(device: torch.device) -> torch.Tensor:
    """What a field is after an implicit step, times this, is what it was before."""
    line = 2 * torch.eye(SIDE) - torch.diag(torch.ones(SIDE - 1), 1) - torch.diag(torch.ones(SIDE - 1), -1)
    spread = torch.kron(line, torch.eye(SIDE)) + torch.kron(torch.eye(SIDE), line)
    return (torch.eye(SIDE * SIDE) + PACE * spread).to(device)


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    matrix = plate(run.device)
    factor, pivots = torch.linalg.lu_factor(matrix)
    heaters = torch.nn.Sequential(
        torch.nn.Linear(SIDE * SIDE, width), torch.nn.Tanh(), torch.nn.Linear(width, SIDE * SIDE)
    ).to(run.device)
    optimizer = torch.optim.Adam(heaters.parameters(), lr=0.001, fused=True)
    fields = torch.rand(512, SIDE * SIDE, device=run.device)
    wanted = torch.rand(512, SIDE * SIDE, device=run.device)
    while True:
        drawn = torch.randint(len(fields), (PLATES,), device=run.device)
        field = fields[drawn]
        for _ in range(MOMENTS):
            heated = (field + PACE * heaters(field)).T
            if run.fixed:
                field = torch.linalg.lu_solve(factor, pivots, heated).T
            else:
                field = torch.linalg.solve(matrix, heated).T
        loss = torch.nn.functional.mse_loss(field, wanted[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every moment of a step factorises a matrix."""
    solved = [span for span in harness.spans(trace) if span["name"] == "aten::linalg_solve"]
    harness.expect(len(solved) >= MOMENTS * (len(harness.steps(trace)) - 1), "the factors are kept")


if __name__ == "__main__":
    main()
