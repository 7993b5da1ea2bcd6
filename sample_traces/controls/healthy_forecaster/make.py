"""A forecaster of quantiles on windows of a series in memory: convolutions, a schedule and a limit on gradients."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 64, "medium": 96, "strong": 128}
LENGTH, AHEAD, SENSORS, BATCH = 96, 8, 16, 48


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    walk = torch.randn(30_000, SENSORS, device=run.device)
    series = torch.nn.functional.avg_pool1d(walk.T, 7, 1).T.contiguous()
    windows = series.unfold(0, LENGTH + AHEAD, 1)
    model = torch.nn.Sequential(
        torch.nn.Conv1d(SENSORS, width, 3, dilation=1),
        torch.nn.GELU(),
        torch.nn.Conv1d(width, width, 3, dilation=3),
        torch.nn.GELU(),
        torch.nn.Conv1d(width, width, 3, dilation=9),
        torch.nn.GELU(),
        torch.nn.Conv1d(width, width, 3, dilation=9),
        torch.nn.GELU(),
        torch.nn.AdaptiveAvgPool1d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(width, 3 * AHEAD),
    ).to(run.device)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=0.001, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: min(1.0, (number + 1) / 100))
    quantiles = torch.tensor([0.1, 0.5, 0.9], device=run.device)[:, None]
    number, told = 0, []
    while True:
        number += 1
        window = windows[torch.randint(len(windows), (BATCH,), device=run.device)]
        guesses = model(window[..., :LENGTH]).view(BATCH, 3, AHEAD)
        off = window[:, :1, LENGTH:] - guesses
        loss = torch.maximum(quantiles * off, (quantiles - 1) * off).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        if number % 25 == 0:
            told.append(f"{number}: {loss.item():.4f} at {schedule.get_last_lr()[0]:.2g}")
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step convolves, and updates all weights at once."""
    number = len(harness.steps(trace))
    harness.expect(len(harness.named(trace, "aten::conv1d")) >= 4 * number, "few convolutions")
    harness.expect(len(harness.named(trace, "aten::_fused_adamw_")) <= number, "weights are updated one by one")


if __name__ == "__main__":
    main()
