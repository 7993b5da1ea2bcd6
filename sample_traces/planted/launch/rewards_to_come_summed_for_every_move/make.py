"""The rewards that follow a move are summed anew for every move, by Python: as many as the square of a play."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sample_traces import harness

LENGTH = {"weak": 25, "medium": 100, "strong": 500}
"""Of a play, in moves."""
MOVES, DISCOUNT = 1000, 0.99
"""Moves of a batch."""


def worth(rewards: list[float]) -> float:
    """What rewards that come one after the other are worth now."""
    total = 0.0
    for later, reward in enumerate(rewards):
        total += DISCOUNT**later * reward
    return total


def returns(rewards: list[float], fixed: bool) -> list[float]:
    """What each move of a play has led to."""
    if not fixed:
        return [worth(rewards[move:]) for move in range(len(rewards))]
    found, total = [0.0] * len(rewards), 0.0
    for move in range(len(rewards) - 1, -1, -1):
        total = rewards[move] + DISCOUNT * total
        found[move] = total
    return found


def main() -> None:
    """Train."""
    run = harness.start()
    random.seed(harness.SEED)
    length = LENGTH[run.level]
    plays = MOVES // length
    states = torch.rand(4 * plays, length, 48, device=run.device)
    actions = torch.randint(6, (4 * plays, length), device=run.device)
    rewards = [[random.random() for _ in range(length)] for _ in range(4 * plays)]
    policy = torch.nn.Sequential(
        torch.nn.Linear(48, 256),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(256, 512),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(512, 6),
    ).to(run.device)
    optimizer = torch.optim.Adam(policy.parameters(), fused=True)
    while True:
        for chosen in torch.randperm(4 * plays).split(plays):
            led_to = [returns(rewards[play], run.fixed) for play in chosen.tolist()]
            values = torch.tensor(led_to, device=run.device).flatten()
            values = (values - values.mean()) / values.std()
            optimizer.zero_grad()
            scores = policy(states[chosen].flatten(0, 1))
            surprise = torch.nn.functional.cross_entropy(scores, actions[chosen].flatten(), reduction="none")
            (surprise * values).mean().backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """The recorded stacks show a sum for every move."""
    sums = harness.named(trace.with_name("rank0.detail.json.gz"), ": worth")
    harness.expect(len(sums) >= MOVES // 2, "few sums of what follows a move")


if __name__ == "__main__":
    main()
