"""A recurrent layer is a loop in Python, one cell after the other."""

from __future__ import annotations

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
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
