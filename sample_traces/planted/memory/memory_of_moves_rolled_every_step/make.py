"""A memory of moves keeps the newest at its end: every step moves all others up by some rows."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

MOVES = {"weak": 4096, "medium": 12288, "strong": 40960}
SEEN, ACTIONS, NEW, BATCH, WIDTH = 64, 8, 16, 128, 256


def main() -> None:
    """Train."""
    run = harness.start()
    moves = MOVES[run.level]
    net = torch.nn.Sequential(
        torch.nn.Linear(SEEN, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, ACTIONS),
    ).to(run.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.0003, fused=True)
    before = torch.randn(moves, SEEN, device=run.device)
    after = torch.randn(moves, SEEN, device=run.device)
    rewards = torch.randn(moves, device=run.device)
    turn = torch.randn(SEEN, SEEN, device=run.device) / SEEN**0.5
    state = torch.randn(NEW, SEEN, device=run.device)
    spot = 0
    while True:
        with torch.no_grad():
            action = net(state).argmax(dim=1)
            reached = torch.tanh(state @ turn + 0.1 * action[:, None])
            if run.fixed:
                place = slice(spot, spot + NEW)
                spot = (spot + NEW) % moves
            else:
                before, after, rewards = (part.roll(-NEW, dims=0) for part in (before, after, rewards))
                place = slice(-NEW, None)
            before[place], after[place], rewards[place] = state, reached, reached[:, 0]
            state = reached
            chosen = torch.randint(moves, (BATCH,), device=run.device)
            target = rewards[chosen] + 0.9 * net(after[chosen]).amax(dim=1)
        worth = net(before[chosen]).amax(dim=1)
        loss = torch.nn.functional.smooth_l1_loss(worth, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step rolls three tensors."""
    rolls = [span for span in harness.spans(trace) if span["name"] == "aten::roll"]
    harness.expect(len(rolls) >= 3 * (len(harness.steps(trace)) - 1), "nothing is rolled")


if __name__ == "__main__":
    main()
