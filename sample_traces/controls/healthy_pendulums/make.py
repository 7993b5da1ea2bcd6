"""A learner of actions' worth that balances pendulums: all of them play, and are remembered, in tensors."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 256, "medium": 320, "strong": 384}
PLAYS, ROWS, PUSHES, KEPT = 64, 512, 5, 64 * 400


def seen(angle: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
    """What the learner sees of pendulums."""
    return torch.stack([angle.cos(), angle.sin(), speed], dim=1)


def moved(angle: torch.Tensor, speed: torch.Tensor, push: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Let pendulums swing on: angles, speeds, and rows to remember."""
    force = (push - PUSHES // 2).to(angle.dtype)
    faster = (speed + 0.05 * (15 * angle.sin() + 3 * force)).clamp(-8, 8)
    further = angle + 0.05 * faster
    reward = angle.cos() - 0.01 * faster.square() - 0.001 * force.square()
    row = torch.cat([seen(angle, speed), push[:, None], reward[:, None], seen(further, faster)], dim=1)
    return further, faster, row


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    model = torch.nn.Sequential(
        torch.nn.Linear(3, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, PUSHES),
    ).to(run.device)
    slow = copy.deepcopy(model).requires_grad_(False)
    weights, slow_weights = list(model.parameters()), list(slow.parameters())
    optimizer = torch.optim.Adam(weights, lr=0.0003, fused=True)
    start, first = 3 * torch.randn(KEPT, device=run.device), torch.randn(KEPT, device=run.device)
    kept = moved(start, first, torch.randint(PUSHES, (KEPT,), device=run.device))[2]
    angle, speed = start[:PLAYS].clone(), first[:PLAYS].clone()
    number, told = 0, []
    while True:
        with torch.no_grad():
            best = model(seen(angle, speed)).argmax(dim=1)
            other = torch.randint(PUSHES, (PLAYS,), device=run.device)
            push = torch.where(torch.rand(PLAYS, device=run.device) < 0.1, other, best)
            place = number * PLAYS % KEPT
            angle, speed, kept[place : place + PLAYS] = moved(angle, speed, push)
            rows = kept[torch.randint(KEPT, (ROWS,), device=run.device)]
            before, pushed, reward, after = rows.split([3, 1, 1, 3], dim=1)
            ahead = slow(after).gather(1, model(after).argmax(dim=1, keepdim=True))
        worth = model(before).gather(1, pushed.long())
        loss = torch.nn.functional.smooth_l1_loss(worth, reward + 0.98 * ahead)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 10.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(slow_weights, weights, 0.005)
        number += 1
        if number % 20 == 0:
            told.append(f"{number}: {loss.item():.4f}, upright {angle.cos().mean().item():.2f}")
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step has four passes of four layers, and updates all weights at once."""
    number = len(harness.steps(trace))
    layers = [span for span in harness.spans(trace) if span["name"] == "aten::linear"]
    harness.expect(len(layers) >= 16 * (number - 1), "few layers")
    harness.expect(len(harness.named(trace, "aten::_fused_adam_")) <= number, "weights are updated one by one")


if __name__ == "__main__":
    main()
