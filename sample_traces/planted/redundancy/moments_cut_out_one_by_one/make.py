"""A recurrent cell of its own kind forecasts a series; it cuts its input out of all moments' inputs."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 4, "medium": 14, "strong": 32}
"""Of a batch."""
LENGTH, SENSORS, WIDTH = 64, 12, 160


class Leaky(torch.nn.Module):
    """A net whose memories fade, each at its own pace."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(SENSORS, WIDTH)
        self.again = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.pace = torch.nn.Parameter(torch.randn(WIDTH))
        self.out = torch.nn.Linear(WIDTH, SENSORS)

    def forward(self, series: torch.Tensor, unbound: bool) -> torch.Tensor:
        """What comes after the series."""
        entered = self.enter(series)
        pace = self.pace.sigmoid()
        memory = entered.new_zeros(len(series), WIDTH)
        moments = entered.unbind(dim=1) if unbound else [entered[:, moment] for moment in range(entered.shape[1])]
        for moment in moments:
            memory = torch.lerp(memory, torch.tanh(moment + self.again(memory)), pace)
        forecast: torch.Tensor = self.out(memory)
        return forecast


def main() -> None:
    """Train."""
    run = harness.start()
    rows = ROWS[run.level]
    steps = torch.randn(20_000, SENSORS, device=run.device)
    series = torch.nn.functional.avg_pool1d(steps.T, 9, 1).T.contiguous()
    windows = series.unfold(0, LENGTH + 1, 1).transpose(1, 2)
    model = Leaky().to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    while True:
        window = windows[torch.randint(len(windows), (rows,), device=run.device)]
        loss = torch.nn.functional.mse_loss(model(window[:, :-1], run.fixed), window[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every moment's gradient is put into one of all moments."""
    put = [span for span in harness.spans(trace) if span["name"] == "aten::select_backward"]
    harness.expect(len(put) >= LENGTH * len(harness.steps(trace)), "few gradients are put into larger ones")


if __name__ == "__main__":
    main()
