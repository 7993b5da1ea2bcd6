"""Updates are made orthogonal by products of a matrix with itself, on the side that comes first: here the long one."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

HIDDEN = {"weak": 144, "medium": 224, "strong": 384}
ROWS, WIDTH, ROUNDS = 512, 64, 5


def orthogonal(update: torch.Tensor, turns: bool) -> torch.Tensor:
    """Newton and Schulz: all singular values near 1."""
    turned = turns and update.shape[0] > update.shape[1]
    x = update.mT if turned else update
    x = x / (x.norm() + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.addmm(x, torch.addmm(square, square, square, beta=-4.775, alpha=2.0315), x, beta=3.4445)
    return x.mT if turned else x


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal."""

    def __init__(self, weights: list[torch.Tensor], lr: float, momentum: float, turns: bool) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum})
        self.turns = turns

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights."""
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["mean"] = torch.zeros_like(weight)
                state["mean"].lerp_(weight.grad, 1 - group["momentum"])
                weight.add_(orthogonal(state["mean"], self.turns), alpha=-group["lr"])


def main() -> None:
    """Train."""
    run = harness.start()
    hidden = HIDDEN[run.level]
    first = torch.nn.Linear(32, WIDTH).to(run.device)
    block = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, hidden, bias=False),
        torch.nn.GELU(),
        torch.nn.Linear(hidden, WIDTH, bias=False),
    ).to(run.device)
    last = torch.nn.Linear(WIDTH, 10).to(run.device)
    muon = Muon(list(block.parameters()), 0.002, 0.95, run.fixed)
    adam = torch.optim.AdamW([*first.parameters(), *last.parameters()], lr=0.001, fused=True)
    inputs = torch.rand(8 * ROWS, 32, device=run.device)
    labels = torch.randint(10, (8 * ROWS,), device=run.device)
    while True:
        chosen = torch.randint(len(inputs), (ROWS,), device=run.device)
        seen = first(inputs[chosen])
        loss = torch.nn.functional.cross_entropy(last(seen + block(seen)), labels[chosen])
        adam.zero_grad()
        muon.zero_grad()
        loss.backward()
        adam.step()
        muon.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Five squares of the hidden size are multiplied by themselves in every step."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    found = 0
    for span in harness.spans(trace):
        if span["name"] == "aten::addmm":
            one, two, three = span["args"]["Input Dims"][:3]
            found += one == two == three and one[0] > WIDTH
    harness.expect(found >= ROUNDS * (len(harness.steps(trace)) - 1), "no squares of the hidden size")


if __name__ == "__main__":
    main()
