"""Matrix-factorisation recommender with user/item biases, trained with SGD."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class MF(nn.Module):
    def __init__(self, n_users, n_items, dim):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)
        self.item_bias = nn.Embedding(n_items, 1)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(-1)
        return dot + self.item_bias(i).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    n_users, n_items, n_inter = 500_000, 80_000, 500_000
    users = torch.from_numpy(rng.integers(0, n_users, n_inter))
    items = torch.from_numpy((rng.beta(0.6, 2.5, n_inter) * n_items).astype(np.int64))
    clicked = torch.from_numpy((rng.random(n_inter) < 0.3).astype(np.float32))

    model = MF(n_users, n_items, 24)
    opt = torch.optim.SGD(model.parameters(), lr=50.0)
    gen = torch.Generator().manual_seed(1)

    for step in range(args.steps):
        idx = torch.randint(0, n_inter, (512,), generator=gen)
        logit = model(users[idx], items[idx])
        loss = F.binary_cross_entropy_with_logits(logit, clicked[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
