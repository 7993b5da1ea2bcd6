"""One-step-ahead forecasting of noisy seasonal series with an LSTM."""
import argparse
from collections import deque

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class Forecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1])


def build_series(n=64, length=300, seed=4):
    rng = np.random.default_rng(seed)
    t = np.arange(length)
    period = rng.uniform(12, 40, size=(n, 1))
    phase = rng.uniform(0, 6.28, size=(n, 1))
    series = np.sin(2 * np.pi * t / period + phase) + 0.1 * rng.standard_normal((n, length))
    return torch.tensor(series, dtype=torch.float32)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
args = parser.parse_args()

torch.manual_seed(4)
series = build_series()
windows = series.unfold(1, 10, 1).reshape(-1, 10)
model = Forecaster()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.MSELoss()
history = []
journal = deque(maxlen=20)

for step in range(args.steps):
    rows = torch.randint(0, len(windows), (16,))
    batch = windows[rows]
    x, y = batch[:, :-1].unsqueeze(-1), batch[:, -1:]

    optimizer.zero_grad()
    pred = model(x)
    loss = loss_fn(pred, y)
    loss.backward()
    optimizer.step()

    history.append(loss.item())
    lines = [f"step {step + 1} target={y.squeeze(1)} pred={pred.detach().squeeze(1)}"]
    for name, p in model.named_parameters():
        lines.append(f"  {name} weight={p.data} grad={p.grad}")
    journal.append("\n".join(lines))

    if (step + 1) % 100 == 0 or step + 1 == args.steps:
        print(f"step {step + 1} loss {np.mean(history[-50:]):.6f} journal tail {len(journal[-1])} chars")
