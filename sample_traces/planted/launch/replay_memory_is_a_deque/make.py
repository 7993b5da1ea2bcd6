"""Q-learning from remembered steps of a pole on a cart."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch

from sample_traces import harness

MEMORY = {"weak": 100_000, "medium": 400_000, "strong": 1_000_000}
BATCH = 512

Step = tuple[tuple[float, ...], int, float, tuple[float, ...]]


def played() -> Step:
    """A step of play: state, action, reward, next state."""
    return (
        tuple(random.random() for _ in range(4)),
        random.randrange(2),
        1.0,
        tuple(random.random() for _ in range(4)),
    )


def recalled(memory: Sequence[Step], places: list[int]) -> list[Step]:
    """The remembered steps at these places."""
    return [memory[place] for place in places]


def network() -> torch.nn.Module:
    """Values of the actions."""
    return torch.nn.Sequential(
        torch.nn.Linear(4, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)
    )


def main() -> None:
    """Train."""
    run = harness.start()
    random.seed(harness.SEED)
    size = MEMORY[run.level]
    pool = [played() for _ in range(10_000)]
    remembered = random.choices(pool, k=size)
    memory: deque[Step] | list[Step] = remembered if run.fixed else deque(remembered, maxlen=size)
    online, target = network(), network()
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, fused=True)
    number = 0
    while True:
        if isinstance(memory, deque):
            memory.append(played())
        else:
            memory[number % size] = played()
        number += 1
        places = random.sample(range(size), BATCH)
        if run.fixed:
            places = [(place + number) % size for place in places]  # the oldest is no longer at place 0
        states, actions, rewards, following = zip(*recalled(memory, places), strict=True)
        with torch.no_grad():
            best = target(torch.tensor(following)).amax(dim=1)
        chosen = online(torch.tensor(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
        optimizer.zero_grad()
        torch.nn.functional.smooth_l1_loss(chosen, torch.tensor(rewards) + 0.99 * best).backward()
        optimizer.step()
        if number % 500 == 0:
            target.load_state_dict(online.state_dict())
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """To recall the steps of a batch takes longer than a list needs."""
    spent = [span["dur"] for span in harness.named(trace.with_name("rank0.detail.json.gz"), ": recalled")]
    harness.expect(len(spent) >= 2 and sorted(spent)[len(spent) // 2] > 400, "steps are recalled quickly")


if __name__ == "__main__":
    main()
