"""A moving average of the weights is kept, whose state is made anew for each weight that is looked up in it."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from sample_traces import harness

LAYERS = {"weak": 5, "medium": 10, "strong": 32}
WIDTH, BATCH, ROWS = 128, 128, 8192


class Layer(torch.nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What the rows become."""
        return rows + torch.nn.functional.gelu(self.linear(rows))


def main() -> None:
    """Train."""
    run = harness.start()
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS[run.level])), torch.nn.Linear(WIDTH, 10))
    model.to(run.device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0005, fused=True)
    inputs = torch.randn(ROWS, WIDTH, device=run.device)
    labels = torch.randint(10, (ROWS,), device=run.device)
    weights = model.state_dict()
    names, values = list(weights), list(weights.values())
    state = average.state_dict()
    while True:
        chosen = torch.randint(ROWS, (BATCH,), device=run.device)
        loss = torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.fixed:  # noqa: SIM108
            averages = [state[name] for name in names]
        else:
            averages = [average.state_dict()[name] for name in names]
        torch._foreach_lerp_(averages, values, 0.001)
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step detaches each weight once for each weight."""
    number = len(harness.steps(trace))
    detached = [span for span in harness.spans(trace) if span["name"] == "aten::detach"]
    least = min((2 * layers + 2) ** 2 for layers in LAYERS.values())
    harness.expect(len(detached) >= least * (number - 1), "the state is made once")
    harness.expect(len(harness.named(trace, "aten::_foreach_lerp_")) >= number - 1, "there is no average")


if __name__ == "__main__":
    main()
