"""Two-layer GCN for node classification on one random sparse graph."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class GCN(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.l1 = nn.Linear(n_in, hidden)
        self.l2 = nn.Linear(hidden, n_out)

    def forward(self, x, adj):
        h = F.relu(adj @ self.l1(x))
        return adj @ self.l2(h)


def build_adj(n, n_edges, rng):
    """Symmetrically normalised adjacency with self loops."""
    src, dst = rng.integers(0, n, (2, n_edges))
    a = np.eye(n, dtype=np.float32)
    a[src, dst] = 1
    a[dst, src] = 1
    d = a.sum(1) ** -0.5
    return torch.from_numpy(d[:, None] * a * d[None, :])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    n = 2000
    adj = build_adj(n, 5000, rng)
    y = torch.from_numpy(rng.integers(0, 8, n))
    x = torch.randn(8, 32)[y] + 2.0 * torch.randn(n, 32)
    train = torch.from_numpy(rng.random(n) < 0.3)

    model = GCN(32, 48, 8)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)

    for step in range(args.steps):
        out = model(x, adj)
        loss = F.cross_entropy(out[train], y[train])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
