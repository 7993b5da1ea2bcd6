"""A policy steps within a trusted region; the divergence is derived anew for every product with its curvature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributions import Categorical, kl_divergence

from sample_traces import harness

SIZES = {"weak": (2, 256), "medium": (4, 96), "strong": (20, 64)}  # Products for a step, and rows to learn from.
SENSES, MOVES = 24, 12


class Policy(torch.nn.Module):
    """What is sensed tells how to move."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Sequential(
            torch.nn.Linear(SENSES, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, MOVES),
        )

    def forward(self, sensed: torch.Tensor) -> Categorical:
        """The distribution of moves."""
        return Categorical(logits=self.scores(sensed), validate_args=False)


def conjugate_gradient(product: Callable[[torch.Tensor], torch.Tensor], goal: torch.Tensor, times: int) -> torch.Tensor:
    """About the vector whose product is the goal."""
    found, rest = torch.zeros_like(goal), goal.clone()
    along, size = rest.clone(), rest @ rest
    for _ in range(times):
        bent = product(along)
        length = size / (along @ bent)
        found, rest = found + length * along, rest - length * bent
        size, before = rest @ rest, size
        along = rest + size / before * along
    return found


def main() -> None:
    """Train."""
    run = harness.start()
    products, count = SIZES[run.level]
    policy = Policy()
    weights = list(policy.parameters())
    value = torch.nn.Sequential(torch.nn.Linear(SENSES, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(value.parameters(), lr=1e-3, fused=True)
    memory, moves, gains = torch.randn(4096, SENSES), torch.randint(MOVES, (4096,)), torch.randn(4096)

    def slope(sensed: torch.Tensor) -> torch.Tensor:
        now = policy(sensed)
        before = Categorical(logits=now.logits.detach(), validate_args=False)
        apart = kl_divergence(before, now).mean()
        return torch.cat([one.flatten() for one in torch.autograd.grad(apart, weights, create_graph=True)])

    for _ in run:
        rows = torch.randint(4096, (count,))
        sensed = memory[rows]
        for _ in range(4):
            optimizer.zero_grad()
            missed = gains[rows] - value(sensed).squeeze(1)
            missed.square().mean().backward()
            optimizer.step()
        better = (policy(sensed).log_prob(moves[rows]) * missed.detach()).mean()
        goal = torch.cat([one.flatten() for one in torch.autograd.grad(better, weights)])
        once = slope(sensed) if run.fixed else None

        def product(
            along: torch.Tensor, sensed: torch.Tensor = sensed, once: torch.Tensor | None = once
        ) -> torch.Tensor:
            steep = slope(sensed) if once is None else once
            parts = torch.autograd.grad(steep @ along, weights, retain_graph=True)
            return torch.cat([one.flatten() for one in parts]) + 0.1 * along

        step = conjugate_gradient(product, goal, products)
        step = step * (0.02 / (step @ goal).clamp(min=1e-8)).sqrt()
        with torch.no_grad():
            changed = torch.nn.utils.parameters_to_vector(weights) + step
            torch.nn.utils.vector_to_parameters(changed, weights)


def verify(trace: Path) -> None:
    """The policy, of two tanhs, is called for more than its gain and one divergence; the value has one a step."""
    tanhs = [span for span in harness.spans(trace) if span["name"] == "aten::tanh"]
    most = max(len(list(harness.within(tanhs, step))) for step in harness.steps(trace))
    harness.expect(most > 5, "the policy is seldom called")


if __name__ == "__main__":
    main()
