"""A graph net sends each node's state along its edges, and multiplies it by the weights at each edge, not once."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

DEGREE = {"weak": 2, "medium": 4, "strong": 16}
NODES, FEATURES, WIDTH, KINDS = 1000, 96, 128, 7


class Layer(torch.nn.Module):
    """Adds up what comes from neighbours."""

    def __init__(self, inputs: int, outputs: int, early: bool) -> None:
        super().__init__()
        self.own = torch.nn.Linear(inputs, outputs)
        self.sent = torch.nn.Linear(inputs, outputs, bias=False)
        self.early = early

    def forward(self, states: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """New states of all nodes."""
        source, target = edges
        if self.early:
            messages = self.sent(states).index_select(0, source)
        else:
            messages = self.sent(states.index_select(0, source))
        return self.own(states).index_add(0, target, messages * weights)


def main() -> None:
    """Train."""
    run = harness.start()
    count = NODES * DEGREE[run.level]
    edges = torch.randint(NODES, (2, count))
    weights = torch.rand(count, 1) / DEGREE[run.level]
    features, kinds = torch.randn(NODES, FEATURES), torch.randint(KINDS, (NODES,))
    first, second = Layer(FEATURES, WIDTH, run.fixed), Layer(WIDTH, WIDTH, run.fixed)
    out = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, KINDS))
    parameters = [*first.parameters(), *second.parameters(), *out.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.001, fused=True)
    while True:
        optimizer.zero_grad()
        states = first(features, edges, weights).relu()
        states = second(states, edges, weights).relu()
        torch.nn.functional.cross_entropy(out(states), kinds).backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Two products a step have a row for each edge."""
    trace = trace.with_name("rank0.detail.json.gz")
    rows = [span["args"]["Input Dims"][0][0] for span in harness.spans(trace) if span["name"] == "aten::linear"]
    steps = harness.steps(trace)
    harness.expect(len(steps) >= 3, "there are few steps")
    harness.expect(sum(row > NODES for row in rows) >= 2 * (len(steps) - 1), "only nodes are multiplied")


if __name__ == "__main__":
    main()
