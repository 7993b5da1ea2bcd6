"""Proximal policy optimisation: passes over recorded play, in shuffled batches."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 256, "medium": 512, "strong": 768}
PLAYED, BATCH, SEEN, ACTIONS = 4096, 256, 128, 8


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    body = torch.nn.Sequential(
        torch.nn.Linear(SEEN, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()
    )
    head = torch.nn.Linear(width, ACTIONS + 1)
    weights = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=3e-4, fused=True)
    seen, actions = torch.randn(PLAYED, SEEN), torch.randint(ACTIONS, (PLAYED, 1))
    gains, returns = torch.randn(PLAYED), torch.randn(PLAYED)
    with torch.no_grad():
        before = head(body(seen))[:, :ACTIONS].log_softmax(dim=1).gather(1, actions).squeeze(1)
    number = 0
    while True:
        for rows in torch.randperm(PLAYED).split(BATCH):
            number += 1
            out = head(body(seen[rows]))
            likely = out[:, :ACTIONS].log_softmax(dim=1)
            ratio = (likely.gather(1, actions[rows]).squeeze(1) - before[rows]).exp()
            gain = gains[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            value_loss = torch.nn.functional.mse_loss(out[:, ACTIONS], returns[rows])
            entropy = -(likely.exp() * likely).sum(dim=1).mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - 0.01 * entropy).backward()
            torch.nn.utils.clip_grad_norm_(weights, 0.5, foreach=True)
            optimizer.step()
            if number % 20 == 0:
                print(f"policy {policy_loss.item():.3f}, values {value_loss.item():.3f}")
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step has one optimizer step for all weights together."""
    harness.expect(len(harness.named(trace, "aten::_fused_adam")) >= len(harness.steps(trace)) - 1, "it is not fused")


if __name__ == "__main__":
    main()
