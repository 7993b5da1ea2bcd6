"""Forecasting: predict the next 24 values from a window of 168 hourly values."""
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Windows:
    def __init__(self, series, context, horizon):
        self.series = series
        self.context = context
        self.horizon = horizon

    def batch(self, size):
        span = self.context + self.horizon
        xs, ys = [], []
        for _ in range(size):
            s = random.randrange(len(self.series))
            t = random.randrange(len(self.series[s]) - span)
            window = self.series[s][t:t + span]
            xs.append(window[:self.context].tolist())
            ys.append(window[self.context:].tolist())
        return torch.tensor(xs), torch.tensor(ys)


def make_series(n, length):
    rng = np.random.default_rng(0)
    t = np.arange(length)
    out = []
    for _ in range(n):
        day = np.sin(2 * np.pi * t / 24 + rng.uniform(0, 6))
        week = 0.5 * np.sin(2 * np.pi * t / 168 + rng.uniform(0, 6))
        out.append((day + week + 0.1 * rng.standard_normal(length)).astype(np.float32))
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)
    random.seed(0)

    data = Windows(make_series(50, 3000), 168, 24)
    model = nn.Sequential(nn.Linear(168, 96), nn.ReLU(), nn.Linear(96, 24))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step in range(args.steps):
        x, y = data.batch(256)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
