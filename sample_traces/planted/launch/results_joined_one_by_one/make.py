"""Pieces of a signal are filtered one by one, and each result is joined to those before it."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

PIECES = {"weak": 8, "medium": 24, "strong": 96}
ROWS, COLUMNS = 16, 128


def main() -> None:
    """Train."""
    run = harness.start()
    pieces = PIECES[run.level]
    first, out = torch.nn.Linear(256, COLUMNS), torch.nn.Linear(COLUMNS, 512)
    weight = torch.nn.Parameter(torch.rand(COLUMNS))
    optimizer = torch.optim.SGD([*first.parameters(), *out.parameters(), weight], lr=0.01)
    inputs = torch.rand(ROWS * pieces, 256)
    while True:
        optimizer.zero_grad()
        signal = first(inputs)
        if run.fixed:
            joined = torch.tanh(signal * weight)
        else:
            joined = signal[:0]
            for start in range(0, ROWS * pieces, ROWS):
                joined = torch.cat([joined, torch.tanh(signal[start : start + ROWS] * weight)])
        out(joined).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step joins many times."""
    joined = [span for span in harness.spans(trace) if span["name"] == "aten::cat"]
    harness.expect(len(joined) >= min(PIECES.values()) * len(harness.steps(trace)), "pieces are joined once")


if __name__ == "__main__":
    main()
