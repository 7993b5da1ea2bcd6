"""Tabular classifier: many categorical columns embedded, then an MLP."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class TabNet(nn.Module):
    def __init__(self, cards, dim, n_num):
        super().__init__()
        self.embs = nn.ModuleList([nn.Embedding(c, dim) for c in cards])
        self.mlp = nn.Sequential(
            nn.Linear(dim * len(cards) + n_num, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, cat, num):
        cols = []
        for j, emb in enumerate(self.embs):
            cols.append(emb(cat[:, j]))
        x = torch.cat(cols + [num], dim=1)
        return self.mlp(x).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    n = 20_000
    cards = [int(c) for c in rng.integers(3, 40, 90)]
    cat = torch.from_numpy(np.stack([rng.integers(0, c, n) for c in cards], axis=1))
    num = torch.from_numpy(rng.standard_normal((n, 10)).astype(np.float32))
    y = ((cat[:, 0] % 2) + num[:, 0] + 0.5 * num[:, 1] > 0.5).float()

    model = TabNet(cards, 4, 10)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(1)

    for step in range(args.steps):
        idx = torch.randint(0, n, (128,), generator=gen)
        logit = model(cat[idx], num[idx])
        loss = F.binary_cross_entropy_with_logits(logit, y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
