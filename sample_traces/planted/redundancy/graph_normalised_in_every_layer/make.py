"""A graph net forecasts what 384 sensors of a road network measure."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch

from sample_traces import harness

CHANNELS = {"weak": 1152, "medium": 480, "strong": 96}
SENSORS, LAYERS = 384, 3


def normalised(graph: torch.Tensor) -> torch.Tensor:
    """With D^-1/2 on both sides."""
    scale = torch.diag(graph.sum(dim=1).rsqrt())
    return scale @ graph @ scale


class GraphLayer(torch.nn.Module):
    """Mixes the channels of a sensor, and then sensors with their neighbours."""

    def __init__(self, ins: int, outs: int, ready: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(ins, outs)
        self.ready = ready

    def forward(self, states: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        """States of the next layer."""
        support = self.linear(states)
        return (graph if self.ready else normalised(graph)) @ support


def main() -> None:
    """Train."""
    run = harness.start()
    sizes = [32, *[CHANNELS[run.level]] * (LAYERS - 1), 12]
    near = torch.rand(SENSORS, SENSORS) < 0.02
    graph = (near | near.T | torch.eye(SENSORS, dtype=torch.bool)).float()
    if run.fixed:
        graph = normalised(graph)
    layers = torch.nn.ModuleList(GraphLayer(ins, outs, run.fixed) for ins, outs in itertools.pairwise(sizes))
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3, fused=True)
    series = torch.randn(SENSORS, 2048)
    now = 0
    while True:
        now = (now + 1) % (2048 - 44)
        optimizer.zero_grad()
        states = series[:, now : now + 32]
        for number, layer in enumerate(layers):
            states = layer(states, graph)
            if number < LAYERS - 1:
                states = torch.relu(states)
        torch.nn.functional.l1_loss(states, series[:, now + 32 : now + 44]).backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every layer makes a matrix of the degrees."""
    made = [span for span in harness.named(trace, "aten::diag") if span["name"] == "aten::diag"]
    harness.expect(len(made) >= LAYERS * (len(harness.steps(trace)) - 1), "the graph is seldom scaled")


if __name__ == "__main__":
    main()
