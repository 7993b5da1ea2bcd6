"""A mixture of normal distributions of prices, by rows of categories and numbers that lie in memory."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 384, "medium": 512, "strong": 768}
ROWS, BATCH, COLUMNS, KINDS, CODE, NUMBERS, PARTS = 16384, 256, 8, 50, 16, 24, 5


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    kinds = torch.randint(KINDS, (ROWS, COLUMNS), device=run.device)
    kinds += KINDS * torch.arange(COLUMNS, device=run.device)
    numbers = torch.randn(ROWS, NUMBERS, device=run.device)
    prices = torch.randn(ROWS, 1, device=run.device)
    codes = torch.nn.Embedding(COLUMNS * KINDS, CODE).to(run.device)
    net = torch.nn.Sequential(
        torch.nn.Linear(COLUMNS * CODE + NUMBERS, width),
        torch.nn.SiLU(),
        torch.nn.Linear(width, width),
        torch.nn.SiLU(),
        torch.nn.Linear(width, 3 * PARTS),
    ).to(run.device)
    weights = [*codes.parameters(), *net.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=0.001, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: min(1.0, (number + 1) / 200))
    number, best, patience, told = 0, math.inf, 0, []
    while True:
        number += 1
        chosen = torch.randint(ROWS, (BATCH,), device=run.device)
        seen = torch.cat([codes(kinds[chosen]).flatten(1), numbers[chosen]], dim=1)
        shares, middles, scales = net(seen).chunk(3, dim=1)
        away = (prices[chosen] - middles) * torch.exp(-scales)
        parts = torch.log_softmax(shares, dim=1) - scales - 0.5 * away.square()
        loss = -torch.logsumexp(parts, dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 5.0)
        optimizer.step()
        schedule.step()
        if number % 25 == 0:
            now = loss.item()
            patience = 0 if now < best else patience + 1
            best = min(best, now)
            told.append(f"{number}: {now:.4f}, best {best:.4f}, {patience} readings ago")
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """All weights are updated at once, and codes are looked up in one table."""
    number = len(harness.steps(trace))
    updates, looked_up = harness.named(trace, "aten::_fused_adamw_"), harness.named(trace, "aten::embedding")
    harness.expect(len(updates) <= number, "weights are updated one by one")
    looked_up = [span for span in looked_up if span["name"] == "aten::embedding"]
    harness.expect(0 < len(looked_up) <= number, "codes are looked up table by table")


if __name__ == "__main__":
    main()
