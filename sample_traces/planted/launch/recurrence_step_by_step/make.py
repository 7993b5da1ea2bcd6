"""A recurrent layer is a loop in Python, one cell after the other."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

BATCH = {"weak": 256, "medium": 64, "strong": 8}
LENGTH, FEATURES, WIDTH = 10, 64, 128


class Loop(torch.nn.Module):
    """The same as LSTM, written with LSTMCell."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(features, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the hidden state after each moment."""
        state, outputs = None, []
        for moment in inputs:
            state = self.cell(moment, state)
            outputs.append(state[0])
        return torch.stack(outputs)


class Whole(torch.nn.Module):
    """LSTM, without its last state."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(features, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the hidden state after each moment."""
        outputs: torch.Tensor = self.layer(inputs)[0]
        return outputs


def main() -> None:
    """Train."""
    run = harness.start()
    model = (Whole if run.fixed else Loop)(FEATURES, WIDTH).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(LENGTH, BATCH[run.level], FEATURES, device=run.device)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step runs the cell once for each moment."""
    cells = len(harness.named(trace, "aten::lstm_cell"))
    harness.expect(cells >= LENGTH * len(harness.steps(trace)), "cells do not run one by one")


if __name__ == "__main__":
    main()
