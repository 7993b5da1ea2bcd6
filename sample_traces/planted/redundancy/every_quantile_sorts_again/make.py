"""Windows of a series are clipped and scaled by their own quantiles, each of which sorts the window anew."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 288, "medium": 112, "strong": 24}
LENGTH, SENSORS, BATCH = 256, 8, 16


def scaled(window: torch.Tensor, shares: torch.Tensor, fixed: bool) -> torch.Tensor:
    """Clip what is far out, and scale by the spread of the middle half."""
    if fixed:
        low, quarter, middle, three, high = torch.quantile(window, shares, dim=2, keepdim=True)
    else:
        low = torch.quantile(window, 0.01, dim=2, keepdim=True)
        high = torch.quantile(window, 0.99, dim=2, keepdim=True)
        middle = torch.quantile(window, 0.5, dim=2, keepdim=True)
        quarter = torch.quantile(window, 0.25, dim=2, keepdim=True)
        three = torch.quantile(window, 0.75, dim=2, keepdim=True)
    return (window.clamp(low, high) - middle) / (three - quarter + 1e-6)


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    series = torch.randn(SENSORS, 50_000, device=run.device).cumsum(dim=1)
    windows = series.unfold(1, LENGTH, 1).transpose(0, 1)
    labels = torch.randint(6, (windows.shape[0],), device=run.device)
    shares = torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99], device=run.device)
    model = torch.nn.Sequential(
        torch.nn.Conv1d(SENSORS, width, 8, stride=4),
        torch.nn.ReLU(),
        torch.nn.Conv1d(width, width, 3),
        torch.nn.ReLU(),
        torch.nn.Conv1d(width, width, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool1d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(width, 6),
    ).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    for _ in run:
        drawn = torch.randint(len(windows), (BATCH,), device=run.device)
        scores = model(scaled(windows[drawn], shares, run.fixed))
        loss = torch.nn.functional.cross_entropy(scores, labels[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Every step sorts its windows five times."""
    number = len(harness.steps(trace)) - 1
    asked = [span for span in harness.spans(trace) if span["name"] == "aten::quantile"]
    harness.expect(sum(1 for _ in asked) >= 5 * number, "the quantiles are found at once")
    sorts = [span for span in harness.spans(trace) if span["name"] == "aten::sort"]
    harness.expect(len(sorts) >= 5 * number, "few sorts")


if __name__ == "__main__":
    main()
